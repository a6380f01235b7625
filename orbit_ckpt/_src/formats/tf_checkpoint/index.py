"""Read the index of a TensorFlow checkpoint: a LevelDB table with a protocol buffer per tensor.

Its blocks are compressed with snappy, which this module decompresses.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, as_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.store_path import read_start

SUFFIX = ".index"
MAGIC = bytes.fromhex("57fb808b247547db")

_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_MAX_BYTES = 1 << 28
_ENTRY_BYTES = 1 << 8
_MAX_DIMENSIONS = 64
_CRC_DELTA = 0xA282EAD8

_DTYPES: Mapping[int, str] = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
}


class IndexEntry(Struct, frozen=True):
    """A tensor of the index.

    Attributes:
        shape: Its shape.
        dtype: Its dtype; None if it does not hold numbers, but strings for example.
        extent: The extent of its bytes.
        checksum: Their masked crc32c.
    """

    shape: Shape
    dtype: DType | None
    extent: Extent
    checksum: int


def mask_checksum(crc: int) -> int:
    """Return a crc32c in the masked form that TensorFlow stores."""
    return (((crc >> 15) | (crc << 17)) + _CRC_DELTA) & 0xFFFFFFFF


def read_index(file: Path) -> dict[str, IndexEntry]:
    """Return the tensors of a checkpoint by name.

    Args:
        file: Its index; the data files are in the same directory.

    Raises:
        FormatError: The file is not an index, or is damaged.
        OSError: It cannot be read.
    """
    data = read_start(file, _MAX_BYTES + 1)
    try:
        return _parse(data, file)
    except (ValueError, LookupError, struct.error) as error:
        raise FormatError(
            f"{file} is not a sound index of a TensorFlow checkpoint: {error}. It is damaged or "
            "incomplete, or was written by something else; copy it again."
        ) from error


def _parse(data: bytes, file: Path) -> dict[str, IndexEntry]:
    if len(data) > _MAX_BYTES or len(data) < _FOOTER_BYTES or not data.endswith(MAGIC):
        raise ValueError(f"a table of up to {_MAX_BYTES} bytes does not end like this")
    footer = len(data) - _FOOTER_BYTES
    position = _Handle.read(data, footer)[1]
    index = _Handle.read(data, position)[0]
    found: dict[str, IndexEntry] = {}
    shards = 0
    total = 0
    for _, value in _entries(_block(data, index)):
        block = _block(data, _Handle.read(value, 0)[0])
        total = _limited(total + len(block))
        for key, entry in _entries(block):
            total = _limited(total + len(key) + _ENTRY_BYTES)  # names share prefixes
            if not key:
                shards = _shard_count(entry)
            else:
                found[key.decode()] = _entry(entry, shards, file)
    if not shards:
        raise ValueError("it does not say how many files of data there are")
    return found


def _limited(nbytes: int) -> int:
    if nbytes > _MAX_BYTES:
        raise ValueError(f"its names and tensors would take more than {_MAX_BYTES} bytes")
    return nbytes


class _Handle(Struct, frozen=True, gc=False):
    """The location of a block."""

    offset: int
    size: int

    @classmethod
    def read(cls, data: bytes, position: int) -> tuple[_Handle, int]:
        """Return a handle, and the position behind it."""
        offset, position = read_varint(data, position)
        size, position = read_varint(data, position)
        return cls(offset, size), position


def _block(data: bytes, handle: _Handle) -> bytes:
    """Check and decompress a block; return its contents."""
    end = handle.offset + handle.size
    if end + _TRAILER_BYTES > len(data):
        raise ValueError(f"a block ends at byte {end} of {len(data)}")
    checked = data[handle.offset : end + 1]
    (stored,) = struct.unpack_from("<I", data, end + 1)
    if mask_checksum(crc32c(checked)) != stored:
        raise ValueError(f"the checksum of the block at byte {handle.offset} does not match")
    contents, kind = checked[:-1], checked[-1]
    if kind not in (0, 1):
        raise ValueError(f"a block is compressed in the unknown way {kind}")
    return decompress(contents, _MAX_BYTES) if kind else contents


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block."""
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise ValueError(f"a block of {len(block)} bytes says it has {restarts} restarts")
    key = b""
    position = 0
    while position < end:
        shared, position = read_varint(block, position)
        rest, position = read_varint(block, position)
        length, position = read_varint(block, position)
        stop = position + rest + length
        if shared > len(key) or stop > end:
            raise ValueError("an entry is longer than its block")
        key = key[:shared] + block[position : position + rest]
        yield key, block[position + rest : stop]
        position = stop


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield numbers and values of the fields of a protocol buffer."""
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, position = read_varint(data, position)
            yield number, value
            continue
        if kind == 2:
            length, position = read_varint(data, position)
        else:
            length = {1: 8, 5: 4}[kind]
        if position + length > len(data):
            raise ValueError("a field is longer than its message")
        value = data[position : position + length]
        yield number, value if kind == 2 else int.from_bytes(value, "little")
        position += length


def _shard_count(header: bytes) -> int:
    fields = dict(_fields(header))
    count = fields.get(1, 0)
    if fields.get(2, 0) != 0:
        raise ValueError("its numbers are big-endian")
    if not isinstance(count, int) or not 0 < count < 100_000:
        raise ValueError(f"it has {count} files of data")
    return count


def _entry(message: bytes, shards: int, file: Path) -> IndexEntry:
    numbers = {3: 0, 4: 0, 5: 0, 6: 0, 1: 0}
    shape: Shape = ()
    for number, value in _fields(message):
        if number == 7:
            raise ValueError("a tensor is saved in slices; save it as a whole")
        if number == 2 and isinstance(value, bytes):
            shape = tuple(_lengths(value))
        elif number in numbers and isinstance(value, int):
            numbers[number] = value
    shard, offset, size = numbers[3], numbers[4], numbers[5]
    if shard >= shards or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"a tensor of {len(shape)} dimensions is in file {shard} of {shards}")
    name = _DTYPES.get(numbers[1])
    dtype = None if name is None else as_dtype(name)
    if dtype is not None and math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{dtype} of shape {shape} does not have {size} bytes")
    data = f"{file.name.removesuffix(SUFFIX)}.data-{shard:05}-of-{shards:05}"
    return IndexEntry(shape, dtype, Extent(str(file.parent / data), offset, size), numbers[6])


def _lengths(message: bytes) -> Iterator[int]:
    """Yield the lengths in a shape."""
    for number, value in _fields(message):
        if number == 3 and value:
            raise ValueError("a tensor has no known shape")
        if number == 2 and isinstance(value, bytes):
            size = dict(_fields(value)).get(1, 0)
            if not isinstance(size, int) or size >= 2**63:
                raise ValueError("a tensor has a length that is not known")
            yield size


_MAX_RATIO = 64


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number of up to 64 bits, and the position behind it.

    Raises:
        ValueError: The number is truncated or too large.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128 and value < 2**64:
            return value, position
        if byte < 128:
            break
    raise ValueError(f"no number ends at byte {position}")


def decompress(data: bytes, max_bytes: int) -> bytes:
    """Decompress a block.

    Args:
        data: The block in snappy's raw format, without frames.
        max_bytes: Maximum size of the result.

    Raises:
        ValueError: The block is damaged, or the result too large.
    """
    length, position = read_varint(data, 0)
    if length > min(max_bytes, _MAX_RATIO * len(data)):
        raise ValueError(f"{len(data)} compressed bytes cannot be {length}")
    result = bytearray()
    while position < len(data) and len(result) <= length:
        tag = data[position]
        position += 1
        if tag & 3 == 0:
            size, position = _literal_size(data, tag, position)
            result += data[position : position + size]
            position += size
        else:
            size, offset, position = _copy(data, tag, position)
            _append_copy(result, size, offset)
    if len(result) != length or position != len(data):
        raise ValueError(f"a compressed block does not have the {length} bytes that it announces")
    return bytes(result)


def _literal_size(data: bytes, tag: int, position: int) -> tuple[int, int]:
    size = tag >> 2
    if size < 60:
        return size + 1, position
    end = position + size - 59
    return int.from_bytes(data[position:end], "little") + 1, end


def _copy(data: bytes, tag: int, position: int) -> tuple[int, int, int]:
    """Return the length and the offset of a copy, and the position behind it."""
    if tag & 3 == 1:
        end = position + 1
        size = ((tag >> 2) & 7) + 4
        offset = ((tag >> 5) << 8) | int.from_bytes(data[position:end], "little")
    else:
        end = position + (2 if tag & 3 == 2 else 4)
        size = (tag >> 2) + 1
        offset = int.from_bytes(data[position:end], "little")
    return size, offset, end


def _append_copy(result: bytearray, size: int, offset: int) -> None:
    if not 0 < offset <= len(result):
        raise ValueError("a compressed block refers to bytes before its start")
    start = len(result) - offset
    pattern = result[start : start + size]
    result += (pattern * (size // len(pattern) + 1))[:size]
