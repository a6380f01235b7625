"""Write trees of arrays as GGUF."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import BinaryIO, cast

import numpy as np

from orbit_ckpt.errors import StorageError
from orbit_ckpt.formats import ArrayStream, WriteRequest, named_arrays, new_file
from orbit_ckpt_gguf.format import MAGIC
from orbit_ckpt_gguf.header import ALIGNMENT, DEFAULT_ALIGNMENT, MAX_DIMENSIONS, padded
from orbit_ckpt_gguf.types import CODES, PLAIN, ValueType

_VERSION = 3
_MAX_NAME_BYTES = 63  # llama.cpp keeps 64, of which one ends the string
_KINDS = {dtype: kind for kind, dtype in PLAIN.items()}

_MAX_FLOAT32 = float(np.finfo(np.float32).max)

_OF_ANOTHER_FILE = {ALIGNMENT, "general.file_type", "general.quantization_version"}
"""Metadata that describes how the tensors of the file were stored that it was read from."""


def write(request: WriteRequest) -> None:
    """Write a tree as one file.

    Raises:
        UnsupportedLeafError: Some leaves are none that the format has; nothing was written.
        NameCollisionError: Two leaves would have one name; nothing was written.
        CheckpointExistsError: The path exists.
        ValueError: A size of shards is given.
    """
    if request.max_shard_bytes is not None:
        raise ValueError(f"{request.path}: GGUF is written as one file; omit max_shard_bytes")
    arrays = named_arrays("GGUF", request.tree, _problem)
    metadata = {key: v for key, v in request.metadata.items() if key not in _OF_ANOTHER_FILE}
    with new_file(request.path, overwrite=request.overwrite) as file:
        header = _header(arrays, metadata)
        file.write(header + bytes(_padding(len(header))))
        for name, array in arrays.items():
            _write_array(file, name, array, request)


def _problem(name: str, array: ArrayStream) -> str | None:
    if array.dtype not in _KINDS:
        return str(array.dtype)
    if len(array.shape) > MAX_DIMENSIONS:
        return f"{len(array.shape)} dimensions"
    if len(name.encode()) > _MAX_NAME_BYTES:
        return f"a name of {len(name.encode())} bytes"
    return None


def _write_array(file: BinaryIO, name: str, array: ArrayStream, request: WriteRequest) -> None:
    written = 0
    for piece in array.pieces(request):
        file.write(piece)
        written += piece.nbytes
    if written != array.nbytes:
        raise StorageError(f"{name}: {written} of {array.nbytes} bytes could be read")
    file.write(bytes(_padding(written)))


def _padding(nbytes: int) -> int:
    return padded(nbytes, DEFAULT_ALIGNMENT) - nbytes


def _header(arrays: Mapping[str, ArrayStream], metadata: Mapping[str, object]) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(arrays), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _typed(value)]
    offset = 0
    for name, array in arrays.items():
        shape = array.shape[::-1]
        place = struct.pack("<IQ", _KINDS[array.dtype], offset)
        parts += [_text(name), struct.pack(f"<I{len(shape)}Q", len(shape), *shape), place]
        offset += padded(array.nbytes, DEFAULT_ALIGNMENT)
    return b"".join(parts)


def _typed(value: object) -> bytes:
    """Return a metadata value, preceded by its type; what GGUF lacks becomes JSON."""
    kind = _value_type(value)
    if kind is not None:
        return struct.pack("<I", kind) + _packed(kind, value)
    elements = cast(Sequence[object], value) if isinstance(value, list | tuple) else ()
    inner = _element_type(elements)
    if inner is None:
        return _typed(json.dumps(value))
    head = struct.pack("<IIQ", ValueType.ARRAY, inner, len(elements))
    return head + b"".join(_packed(inner, element) for element in elements)


def _element_type(elements: Sequence[object]) -> ValueType | None:
    """Return the type that all elements of an array have, None without one."""
    kinds = {_value_type(element) for element in elements}
    if kinds and kinds <= set(_INTEGERS):
        return _integer_type(cast(Sequence[int], elements), (ValueType.INT32, *_INTEGERS))
    if kinds and kinds <= {*_INTEGERS, *_FLOATS}:
        return ValueType.FLOAT64 if ValueType.FLOAT64 in kinds else ValueType.FLOAT32
    return kinds.pop() if len(kinds) == 1 else None


_INTEGERS = (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64)
"""Integer types of single numbers; llama.cpp expects the first one wherever it fits."""

_FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)
"""Types of fractions; llama.cpp expects the first one, which most fractions are rounded to."""


def _value_type(value: object) -> ValueType | None:
    """Return the type of a single value, None without one."""
    if isinstance(value, str):
        return ValueType.STRING
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        return _integer_type([value], _INTEGERS)
    if isinstance(value, float):
        fits = abs(value) <= _MAX_FLOAT32 or not math.isfinite(value)
        return ValueType.FLOAT32 if fits else ValueType.FLOAT64
    return None


def _integer_type(numbers: Sequence[int], kinds: Sequence[ValueType]) -> ValueType | None:
    """Return the first type that holds some integers."""
    for kind in kinds:
        bits = 8 * struct.calcsize(f"<{CODES[kind]}")
        is_signed = CODES[kind].islower()
        least, end = (-(1 << bits - 1), 1 << bits - 1) if is_signed else (0, 1 << bits)
        if all(least <= number < end for number in numbers):
            return kind
    return None


def _packed(kind: ValueType, value: object) -> bytes:
    if kind is ValueType.STRING:
        return _text(cast(str, value))
    return struct.pack(f"<{CODES[kind]}", value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
