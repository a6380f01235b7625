"""eFormer's records other than arrays: pickled values, and SHA-256 checksums of the arrays.

Values are read without running a pickle. A checksum covers an array's values as numpy lays them
out, and is stored under the leaf's name in its tree. A checkpoint of several trees only has the
checksums of the tree saved last, without that tree's name.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, as_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.formats.zarr_tree import ArrayEntry
from orbit_ckpt._src.guards import is_mapping
from orbit_ckpt._src.metadata.codec import decode_json

_LITERALS = frozenset(
    {
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "FLOAT", "BINFLOAT"),
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"),
        *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    }
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_WITHOUT_EFFECT = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"})


SUMS, DESCRIPTIONS = "checksum", "array_metadata"
"""Fields of eFormer's metadata."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SUB_BYTE = re.compile(r"u?int[124]|float[46]_.*")
"""Dtypes whose elements have different bytes in different programs."""


class PickledValue(Struct, frozen=True):
    """A value that a checkpoint stores as a pickle, which a load does not run.

    A pickle can do anything when it is loaded; call `pickle.loads(value.data)` only if you trust
    the writer of the checkpoint.

    Attributes:
        data: The pickle.
    """

    data: bytes

    def __repr__(self) -> str:
        return f"PickledValue({len(self.data)} bytes)"


def decode_literal(data: bytes) -> object:
    """Return the number, text, bytes, boolean or None in a pickle, else a `PickledValue`.

    Raises:
        ValueError: The data is not a pickle.
    """
    values: list[object] = []
    is_literal = True
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _LITERALS:
                values.append(argument)
            elif opcode.name in _CONSTANTS:
                values.append(_CONSTANTS[opcode.name])
            elif opcode.name not in _WITHOUT_EFFECT and opcode.name != "STOP":
                is_literal = False
    except (ValueError, IndexError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise ValueError(f"not a pickle: {error}") from error
    return values[0] if is_literal and len(values) == 1 else PickledValue(bytes(data))


def checksums_of_arrays(
    sums: object, descriptions: object, arrays: Mapping[str, tuple[Shape, DType]]
) -> dict[str, str]:
    """Return the usable checksums; one of an array of another shape or dtype is not usable.

    Args:
        sums: The recorded checksums, by name.
        descriptions: Shapes and dtypes of the arrays they cover, by name.
        arrays: Shapes and dtypes of the existing arrays.
    """
    if not is_mapping(sums) or not is_mapping(descriptions):
        return {}
    found: dict[str, str] = {}
    for name, (shape, dtype) in arrays.items():
        value = sums.get(name)
        described = descriptions.get(name)
        if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
            continue
        if _describes(described, shape, dtype):
            found[name] = value
    return found


def checksums_of_texts(
    metadata: Mapping[str, str], arrays: Mapping[str, tuple[Shape, DType]]
) -> dict[str, str]:
    """Return the checksums in the metadata of a safetensors file, where they are JSON strings."""
    sums, descriptions = (_parse(metadata.get(name, "")) for name in (SUMS, DESCRIPTIONS))
    return checksums_of_arrays(sums, descriptions, arrays)


def checksums_of_trees(
    sums: object, descriptions: object, trees: Mapping[str | None, Sequence[ArrayEntry]]
) -> dict[str, str]:
    """Return the checksums of a checkpoint's arrays, by their paths.

    None are usable if several of its trees have leaves of the recorded names.

    Args:
        sums: The recorded checksums, by name.
        descriptions: Shapes and dtypes of the arrays they cover, by name.
        trees: The entries of the index, by the prefixes of the trees.
    """
    if not is_mapping(sums) or not sums:
        return {}
    names = set(sums)
    named = [
        {_name_in_tree(entry, prefix): entry for entry in entries}
        for prefix, entries in trees.items()
    ]
    fitting = [entries for entries in named if set(entries) == names]
    if len(fitting) != 1:
        return {}
    (entries,) = fitting
    try:
        arrays = {name: entry.layout() for name, entry in entries.items()}
    except ValueError:  # reading the index reports it
        return {}
    found = checksums_of_arrays(sums, descriptions, arrays)
    return {entries[name].path: value for name, value in found.items()}


def without_checksums(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return a checkpoint's metadata for a copy, whose arrays may differ."""
    sums = {SUMS, DESCRIPTIONS} if metadata.keys() >= {SUMS, DESCRIPTIONS} else set[str]()
    return {name: value for name, value in metadata.items() if name not in sums}


def _name_in_tree(entry: ArrayEntry, prefix: str | None) -> str:
    name = entry.path.replace("/", ".")
    return name if prefix is None else name.removeprefix(f"{prefix}.")


def _describes(described: object, shape: Shape, dtype: DType) -> bool:
    if not is_mapping(described) or _SUB_BYTE.fullmatch(dtype.name):
        return False
    try:
        recorded = as_dtype(str(described.get("dtype")))
        return described.get("shape") == list(shape) and recorded == dtype
    except TypeError:
        return False


def _parse(text: str) -> object:
    try:
        return decode_json(text.encode(), dict[str, object], "")
    except ValueError:
        return None
