"""What a msgpack file of Flax holds, as a stored tree: placeholders, for arrays read later."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgpack
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, as_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import FormatError, VersionError
from orbit_ckpt._src.formats.stored_tree import StoredTree, TreeParts, empty_typestr
from orbit_ckpt._src.guards import is_dict, is_list_or_tuple
from orbit_ckpt._src.metadata.outline import encode_rich_types, outline_of
from orbit_ckpt._src.metadata.schema import (
    BYTES,
    NUMPY_ARRAY,
    UNKNOWN_TYPE,
    LeafDetail,
    LeafRecord,
    TreeDetails,
    TreeDocument,
    encode_values,
)
from orbit_ckpt._src.storage.foreign import ForeignArray, ForeignStore, RawArray
from orbit_ckpt._src.storage.layout import Value
from orbit_ckpt._src.storage.value_read import read_value
from orbit_ckpt._src.tree.flatten import FlatTree, flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import format_path, name_path, storage_name
from orbit_ckpt._src.type_handlers.scalar import NUMPY

NUMBERS = frozenset({int, float, bool, type(None)})
"""Types of which a tree may have millions of values."""


_ELSEWHERE = "//GDAPlaceholder:"
"""Prefix of the string that Flax writes in place of an array of several processes."""

_SCALAR, _STRING = "scalar", "string"
_MANY_VALUES = 20_000


class ArrayNode(Struct, frozen=True, gc=False):
    """An array: its shape, its dtype, and its elements or their location."""

    shape: Shape
    dtype: DType
    value: Value
    is_scalar: bool = False


class BytesNode(Struct, frozen=True, gc=False):
    """A bytes value, or its location."""

    value: Value

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return len(self.value) if isinstance(self.value, bytes) else self.value.length


class ObjectNode(Struct, frozen=True, gc=False):
    """A value that cannot be a leaf: a timestamp, or one of an unknown extension type."""

    value: msgpack.Timestamp | msgpack.ExtType


def with_values(node: object) -> object:
    """Replace the nodes in a result of `scan_file` by their values; read arrays.

    Raises:
        CorruptionError: The file was truncated since the scan.
    """
    if is_dict(node):
        return {key: with_values(child) for key, child in node.items()}
    if is_list_or_tuple(node):
        children = [one if type(one) in NUMBERS else with_values(one) for one in node]
        return children if isinstance(node, list) else tuple(children)
    if isinstance(node, ObjectNode):
        return node.value
    if isinstance(node, BytesNode):
        return read_value(node.value)
    if isinstance(node, ArrayNode):
        array = np.frombuffer(read_value(node.value), node.dtype).reshape(node.shape)
        return array[()] if node.is_scalar else array.copy()
    return node


class LinkedNode(Struct, frozen=True, gc=False):
    """An array stored outside the file, which refers to it."""

    array: ForeignArray


def stored_tree(tree: object, path: Path, file: Path) -> StoredTree:
    """Return a result of `scan_file` as a stored tree, whose leaves are read from the file.

    Args:
        tree: The tree.
        path: The user's path of the checkpoint.
        file: The file.

    Raises:
        FormatError: A number does not fit any dtype.
        VersionError: An array is stored in separate files.
    """
    try:
        flat: FlatTree = flatten(tree)
    except ValueError as error:
        raise FormatError(
            f"{file}: {error} `load` without options can return such a tree."
        ) from error
    arrays: dict[str, ForeignArray] = {}
    strings: dict[str, object] = {}
    inline: dict[str, object] = {}
    details: dict[str, LeafDetail] = {}
    records: list[LeafRecord] = []
    names = unique_names([name_path(keys) for keys in flat.paths])
    for keys, name, value in zip(flat.paths, names, flat.values, strict=True):
        typestr, type_ = _kind_of(value)
        is_empty = is_empty_node(value)
        records.append(LeafRecord(keys, name_path(keys), name, typestr, is_empty))
        if type_ is not None:
            details[name] = LeafDetail(type_)
        if isinstance(value, str):
            _check_here(value, f"{file}: {format_path(keys)}", file)
            strings[name] = value
        elif isinstance(value, ObjectNode):
            inline[name] = value.value
        elif not is_empty:
            arrays[name] = _array_of(value, f"{file}: {format_path(keys)}")
    texts = encode_values(records)
    document = TreeDocument(records, rich_types=encode_rich_types(outline_of(tree, flat), texts))
    return StoredTree(
        path,
        document,
        lambda: TreeParts(ForeignStore(arrays, [file]), strings=strings),
        TreeDetails(leaves=details),
        inline,
        fingerprint_file=file,
    )


def whole_tree(tree: object, path: Path, file: Path) -> StoredTree | None:
    """Return a result of `scan_file` as a stored tree that is read in one go, as Flax does.

    Returns:
        None unless the tree has too many values other than arrays to handle each as a leaf, or keys
        that JAX cannot sort.

    Raises:
        VersionError: An array is stored in separate files.
    """
    count, is_sorted = _measure(tree)
    if is_sorted and count <= _MANY_VALUES:
        return None
    _check_strings(tree, file)
    return StoredTree(
        path,
        TreeDocument([]),
        lambda: TreeParts(ForeignStore({}, [file])),
        fingerprint_file=file,
        read_whole=lambda: with_values(tree),
    )


def _check_strings(node: object, file: Path, names: tuple[str, ...] = ()) -> None:
    """Check that no string of a tree stands for an array in separate files."""
    if isinstance(node, str):
        _check_here(node, f"{file}: {format_path(names)}", file)
    pairs: Iterable[tuple[object, object]] = ()
    if is_dict(node):
        pairs = node.items()
    elif is_list_or_tuple(node):
        pairs = enumerate(node)
    for key, child in pairs:
        if isinstance(child, str) or is_dict(child) or is_list_or_tuple(child):
            _check_strings(child, file, (*names, str(key)))


def _measure(node: object) -> tuple[int, bool]:
    """Return the number of values other than arrays, and whether all keys can be sorted."""
    if not is_dict(node) and not is_list_or_tuple(node):
        return 0 if isinstance(node, ArrayNode) else 1, True
    children = list(node.values() if is_dict(node) else node)
    is_sorted = not is_dict(node) or len(set(map(type, node))) < 2
    others = [child for child in children if type(child) not in NUMBERS]
    found = [_measure(child) for child in others]
    count = len(children) - len(others) + sum(count for count, _ in found)
    return count, is_sorted and all(is_fine for _, is_fine in found)


def _check_here(text: str, where: str, file: Path) -> None:
    if text.startswith(_ELSEWHERE):
        raise VersionError(
            f"{where}: its array was saved by several processes into {file}_gda, which cannot be "
            "read. Restore it with Flax and save it again."
        )


def unique_names(paths: Iterable[tuple[str, ...]]) -> list[str]:
    """Return unique storage names of leaves, even if dots in keys make two names equal."""
    found: dict[str, None] = {}
    for names in paths:
        name = storage_name(names)
        while name in found:
            name += "~"
        found[name] = None
    return list(found)


def _kind_of(value: object) -> tuple[str, str | None]:
    """Return the typestr of a leaf and its recorded type, if any."""
    if is_empty_node(value):
        return empty_typestr(value), None
    if isinstance(value, LinkedNode | ObjectNode):
        return UNKNOWN_TYPE, None
    if isinstance(value, ArrayNode):
        return (_SCALAR, NUMPY) if value.is_scalar else (UNKNOWN_TYPE, None)
    if isinstance(value, BytesNode):
        return NUMPY_ARRAY, BYTES
    return (_STRING if isinstance(value, str) else _SCALAR), None


def _array_of(value: object, where: str) -> ForeignArray:
    if isinstance(value, LinkedNode):
        return value.array
    if isinstance(value, ArrayNode):
        return RawArray(value.shape, value.dtype, value.value)
    if isinstance(value, BytesNode):
        return RawArray((value.nbytes,), as_dtype(np.uint8), value.value)
    try:
        host = np.asarray(value)
    except OverflowError:
        host = np.asarray(None)
    if host.dtype.kind not in "biufc":
        raise FormatError(f"{where}: {value!r} is no number of 64 bits")
    return RawArray((), host.dtype, host.tobytes())
