"""Decompress snappy, as the tables of LevelDB are compressed with it."""

from __future__ import annotations

_MAX_RATIO = 64


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number of up to 64 bits, and where what follows it begins.

    Raises:
        ValueError: It is cut short or too large.
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
    """Return what was compressed.

    Args:
        data: A block of snappy, without frames.
        max_bytes: Most bytes that it may have.

    Raises:
        ValueError: It is damaged or too large.
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
        raise ValueError(f"a compressed block does not have the {length} bytes that it says")
    return bytes(result)


def _literal_size(data: bytes, tag: int, position: int) -> tuple[int, int]:
    size = tag >> 2
    if size < 60:
        return size + 1, position
    end = position + size - 59
    return int.from_bytes(data[position:end], "little") + 1, end


def _copy(data: bytes, tag: int, position: int) -> tuple[int, int, int]:
    """Return how many bytes are copied, from how far back, and where what follows begins."""
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
        raise ValueError("a compressed block refers to what is before it")
    start = len(result) - offset
    pattern = result[start : start + size]
    result += (pattern * (size // len(pattern) + 1))[:size]
