"""Divide units of a read into shares, each of which one thread reads."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from orbit_ckpt._src.storage.chunk_read import SMALL_BYTES
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.value_read import MAX_OBJECT_AHEAD_BYTES

_MAX_REQUEST_BYTES = 1 << 23
_MIN_REQUEST_BYTES = 1 << 20
"""Limits of the size of one request for several values: a smaller one mostly waits."""

_MAX_GAP_BYTES = 1 << 16
"""Gaps between values of an object up to this size are read too."""

_NOWHERE = Extent("", 0, 0)


class Share(Struct, frozen=True, gc=False):
    """Units that one thread reads.

    Attributes:
        positions: The units, by position.
        place: The place in an object of a store that contains all of them, to be read by one
            request; an empty one if every unit is read by requests of its own. None on a disk, and
            where every value is an object.
    """

    positions: Sequence[int]
    place: Extent | None = None


def share_by_size(sizes: Sequence[int], threads: int) -> list[Share]:
    """Share units in order, about the same number of bytes to each thread.

    Args:
        sizes: The number of bytes of every unit.
        threads: Number of threads.
    """
    small = [i for i, size in enumerate(sizes) if size < SMALL_BYTES]
    large = [i for i, size in enumerate(sizes) if size >= SMALL_BYTES]
    target = sum(sizes[i] for i in large) / threads
    shares: list[list[int]] = [small]
    held = target
    for i in large:
        if held >= target:
            shares.append([])
            held = 0
        shares[-1].append(i)
        held += sizes[i]
    return [Share(share) for share in shares if share]


def share_by_place(
    places: Sequence[Extent | None], threads: int, *, max_bytes: int = _MAX_REQUEST_BYTES
) -> list[Share]:
    """Share units in objects of a store so that as few requests as possible keep threads busy.

    Args:
        places: The place of every unit; None if it needs no request, or several.
        threads: Number of threads.
        max_bytes: Maximum size of a request for several units.
    """
    found = sorted((place.file, place.offset, i) for i, place in enumerate(places) if place)
    nbytes = sum(place.length for place in places if place)
    limit = min(max_bytes, max(_MIN_REQUEST_BYTES, nbytes // threads))
    others = [i for i, place in enumerate(places) if place is None]
    shares = [Share(others[i::threads], _NOWHERE) for i in range(min(threads, len(others)))]
    run: list[int] = []
    file, start, end = "", 0, 0
    for _, _, i in found:
        place = places[i] or _NOWHERE
        is_near = place.file == file and place.offset - end <= _MAX_GAP_BYTES
        stop = max(end, place.offset + place.length) if is_near else 0
        if run and not (is_near and stop - start <= limit):
            shares.append(Share(run, Extent(file, start, end - start)))
            run = []
        if place.length >= MAX_OBJECT_AHEAD_BYTES:
            shares.append(Share([i], _NOWHERE))
            continue
        if not run:
            file, start, end = place.file, place.offset, place.offset
        run.append(i)
        end = max(end, place.offset + place.length)
    if run:
        shares.append(Share(run, Extent(file, start, end - start)))
    return shares
