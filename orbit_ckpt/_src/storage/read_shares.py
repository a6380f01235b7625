"""Share what is read of a store: what lies together, by one request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from orbit_ckpt._src.storage.layout import Extent, Value
from orbit_ckpt._src.storage.store_path import is_store_url
from orbit_ckpt._src.storage.value_read import NOWHERE, OBJECT_ALONE_BYTES, ValueReader

_MAX_REQUEST_BYTES = 1 << 23
_MIN_REQUEST_BYTES = 1 << 20
"""Limits of the size of one request for several values: a smaller one mostly waits."""

_MAX_GAP_BYTES = 1 << 16
"""Gaps between values of an object up to this size are read too."""

K = TypeVar("K")


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
    shares = [Share(others[i::threads], NOWHERE) for i in range(min(threads, len(others)))]
    run: list[int] = []
    file, start, end = "", 0, 0
    for _, _, i in found:
        place = places[i] or NOWHERE
        is_near = place.file == file and place.offset - end <= _MAX_GAP_BYTES
        stop = max(end, place.offset + place.length) if is_near else 0
        if run and not (is_near and stop - start <= limit):
            shares.append(Share(run, Extent(file, start, end - start)))
            run = []
        if place.length >= OBJECT_ALONE_BYTES:
            shares.append(Share([i], NOWHERE))
            continue
        if not run:
            file, start, end = place.file, place.offset, place.offset
        run.append(i)
        end = max(end, place.offset + place.length)
    if run:
        shares.append(Share(run, Extent(file, start, end - start)))
    return shares


def in_requests(
    values: Mapping[K, Value | None],
    reading: ValueReader,
    *,
    max_bytes: int = _MAX_REQUEST_BYTES,
) -> Iterator[K]:
    """Yield the keys of values in the order in which fewest requests read them.

    Args:
        values: The values, or their places.
        reading: Reads each value while its key is the last one.
        max_bytes: Maximum size of a request for several values.
    """
    places = {
        key: value
        for key, value in values.items()
        if type(value) is Extent and is_store_url(value.file)
    }
    yield from (key for key in values if key not in places)
    keys = list(places)
    for share in share_by_place(list(places.values()), 1, max_bytes=max_bytes):
        reading.expect(share.place or NOWHERE)
        yield from (keys[i] for i in share.positions)
