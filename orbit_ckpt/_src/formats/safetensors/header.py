"""Read and write the header of a safetensors file, with strict checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import ml_dtypes
import msgspec
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, as_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.foreign import check_shape
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.store_path import file_size, read_extent
from orbit_ckpt._src.unique_keys import check_unique

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
SINGLE, INDEX = f"model{SUFFIX}", f"model{INDEX_SUFFIX}"

MAX_HEADER_BYTES = 100_000_000
"""The format's limit, which the library itself enforces."""

LENGTH_BYTES = 8
_LFS = b"version "
METADATA = "__metadata__"

DTYPES: Mapping[str, DType] = {
    name: as_dtype(dtype)
    for name, dtype in {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "I8": np.int8,
        "U16": np.uint16,
        "I16": np.int16,
        "U32": np.uint32,
        "I32": np.int32,
        "U64": np.uint64,
        "I64": np.int64,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "F32": np.float32,
        "F64": np.float64,
        "C64": np.complex64,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "F6_E2M3": ml_dtypes.float6_e2m3fn,
        "F6_E3M2": ml_dtypes.float6_e3m2fn,
        "F4": ml_dtypes.float4_e2m1fn,
    }.items()
}
"""The dtypes of the format."""

PACKED_BITS: Mapping[str, int] = {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
"""Dtypes whose elements are whole bytes in memory only, not in a file."""


_Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Tensor(Struct, frozen=True):
    """A tensor of a file.

    Attributes:
        dtype: The format's name of its dtype.
        shape: Its shape.
        extent: The extent of its bytes.
    """

    dtype: str
    shape: Shape
    extent: Extent

    @property
    def as_stored(self) -> tuple[Shape, DType]:
        """Shape and dtype of the array of its bytes.

        Elements smaller than a byte stay packed, as uint8, because the format does not define their
        order; the last dimension then counts bytes.
        """
        bits = PACKED_BITS.get(self.dtype)
        if bits is None:
            return self.shape, DTYPES[self.dtype]
        *outer, last = self.shape or (0,)
        is_whole = last * bits % 8 == 0
        return ((*outer, last * bits // 8) if is_whole else (self.extent.length,)), DTYPES["U8"]


class Header(Struct, frozen=True):
    """The contents of a file's header.

    Attributes:
        tensors: Tensors by name, in the order of their names.
        metadata: The writer's metadata strings.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_header(file: Path) -> Header:
    """Read only the header of a file.

    Raises:
        FormatError: The file has another format, is truncated, or contradicts itself.
        OSError: It cannot be read.
    """
    name = str(file)
    first = read_extent(name, 0, LENGTH_BYTES)
    if first == _LFS:
        raise _bad(file, "it is a pointer of Git LFS, whose file `git lfs pull` downloads")
    length = int.from_bytes(first, "little")
    start = LENGTH_BYTES + length
    # the size of an object is cheap once its header has been read
    size = len(first) if len(first) < LENGTH_BYTES else None
    if size is None and (directory_of(file).knows_sizes or length > MAX_HEADER_BYTES):
        size = file_size(file)
    if size is not None and (size < LENGTH_BYTES or size < start):
        raise _bad(file, f"it has {size} bytes, fewer than the {length} of its header")
    if length > MAX_HEADER_BYTES:
        raise _bad(file, f"its header has {length} bytes, of at most {MAX_HEADER_BYTES}")
    text = read_extent(name, LENGTH_BYTES, length)
    if len(text) < length:
        size = LENGTH_BYTES + len(text)
        raise _bad(file, f"it has {size} bytes, fewer than the {length} of its header")
    try:
        header = _parse(text, name, start)
        if size is None:
            extents = [tensor.extent for tensor in header.tensors.values()]
            size = file_size(file, max([e.offset + e.length for e in extents], default=start))
        _check_cover(header.tensors, start, size - start)
    except (ValueError, TypeError, RecursionError, msgspec.DecodeError) as error:
        raise _bad(file, str(error)) from error
    return header


def looks_like_header(data: bytes, size: int) -> bool:
    """Return whether a file may have the format.

    Args:
        data: Its first bytes, more than eight.
        size: Its size.
    """
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    is_possible = 2 <= length <= min(size - LENGTH_BYTES, MAX_HEADER_BYTES)
    return is_possible and data[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"


def _parse(text: bytes, file: str, start: int) -> Header:
    if not text.startswith(b"{"):
        raise ValueError("its header does not begin with '{'")
    # the types limit what a malicious header can create
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    found = fields.pop(METADATA, None)
    metadata = {} if found is None else msgspec.json.decode(found, type=dict[str, str])
    tensors: dict[str, Tensor] = {}
    for name, raw in sorted(fields.items()):
        try:
            tensors[name] = _tensor(raw, file, start)
        except (ValueError, msgspec.DecodeError) as error:
            raise ValueError(f"{name!r}: {error}") from error
    check_unique(text.decode())
    return Header(tensors, metadata)


class _Entry(Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


_decoder = msgspec.json.Decoder(_Entry)


def _tensor(raw: msgspec.Raw, file: str, start: int) -> Tensor:
    entry = _decoder.decode(raw)
    dtype, shape, (begin, end) = entry.dtype, entry.shape, entry.data_offsets
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
    check_shape(shape, DTYPES[dtype].itemsize)
    bits = math.prod(shape) * bits_of(dtype)
    if bits % 8 or bits // 8 != end - begin:
        raise ValueError(f"{dtype} of shape {list(shape)} does not have {end - begin} bytes")
    return Tensor(dtype, tuple(shape), Extent(file, start + begin, end - begin))


def bits_of(dtype: str) -> int:
    """Return the number of bits of an element in a file."""
    return PACKED_BITS.get(dtype) or DTYPES[dtype].itemsize * 8


def _check_cover(tensors: Mapping[str, Tensor], start: int, data_bytes: int) -> None:
    """Check that every byte after the header belongs to one tensor, as the format requires."""
    position, last = start, ""
    placed = [(t.extent.offset, t.extent.length, name) for name, t in tensors.items()]
    for offset, length, name in sorted(placed):
        if offset < position:
            raise ValueError(f"{name!r} and {last!r} overlap")
        if offset > position:
            raise ValueError(f"{offset - position} bytes before {name!r} belong to no tensor")
        position, last = offset + length, name
    beyond = position - start - data_bytes
    if beyond > 0:
        raise ValueError(f"the file ends {beyond} bytes before the end of {last!r}")
    if beyond < 0:
        raise ValueError(f"the last {-beyond} bytes belong to no tensor")


def _bad(file: Path, what: str) -> FormatError:
    return FormatError(
        f"{file} is not a sound safetensors file: {what}. It is damaged or incomplete, or was "
        "written by something else; download or copy it again."
    )
