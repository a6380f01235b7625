"""Read consecutive bytes into several buffers, by requests of about the same size."""

from __future__ import annotations

from collections.abc import Sequence


def even_size(nbytes: int, about: int) -> int:
    """Return the size of the equal parts into which to cut bytes, at most half above a size."""
    return -(-nbytes // max(1, round(nbytes / about))) or 1


def views_between(buffers: Sequence[memoryview], start: int, stop: int) -> list[memoryview]:
    """Return the parts of consecutive buffers between two positions; at least one, even empty."""
    found: list[memoryview] = []
    for buffer in buffers:
        part = buffer[max(0, start) : max(0, stop)]
        if part.nbytes:
            found.append(part)
        start -= buffer.nbytes
        stop -= buffer.nbytes
    return found or [memoryview(bytearray())]


def scatter(data: bytes | memoryview, buffers: Sequence[memoryview]) -> int:
    """Copy bytes into buffers until either ends; return their number."""
    done = 0
    for buffer in buffers:
        part = data[done : done + buffer.nbytes]
        buffer[: len(part)] = part
        done += len(part)
    return done
