"""Compare stored arrays by the digests of their chunks, without reading them."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.storage.base_database import BaseError, read_digests
from orbit_ckpt._src.storage.layout import Extent

_KEY = re.compile(r"(?P<array>.*)/(?P<part>c(?:/\d+)*|zarr\.json)", re.DOTALL)
"""A key of a database: a chunk of an array, or its metadata document."""


class ChunkChange(Struct, frozen=True):
    """How many chunks of an array differ.

    Attributes:
        differing: Number of chunks with different digests, and of those that one array lacks.
        total: Number of chunks that at least one array has.
    """

    differing: int
    total: int

    def __str__(self) -> str:
        return f"{self.differing} of {self.total} chunks differ"


class DigestedArray(Struct):
    """What the index and the digests of a tree tell of an array.

    Attributes:
        digests: The digests of its chunks in data files, by key; None for an unknown one.
        inline: Its document, and chunks so small that they are in the index.
    """

    digests: dict[str, bytes | None]
    inline: dict[str, bytes]


def digested_arrays(path: Path) -> dict[str, DigestedArray]:
    """Return the arrays of a stored tree by name; none if no digests are recorded."""
    try:
        values, digests = read_digests(path)
    except BaseError:
        return {}
    arrays = defaultdict[str, DigestedArray](lambda: DigestedArray({}, {}))
    for key, value in values.items() if digests else ():
        found = _KEY.fullmatch(key)
        if found is None:
            continue
        array, part = arrays[found["array"]], found["part"]
        if isinstance(value, Extent):
            array.digests[part] = digests.get(key.encode())
        else:
            array.inline[part] = value
    return dict(arrays)


def compare_digests(a: DigestedArray, b: DigestedArray) -> ChunkChange | None:
    """Return how two arrays differ; None if that takes reading values.

    Chunks in the index count only if they are equal: compression may give equal values different
    bytes.
    """
    if a.inline != b.inline or None in (*a.digests.values(), *b.digests.values()):
        return None
    keys = a.digests.keys() | b.digests.keys()
    differing = sum(a.digests.get(key) != b.digests.get(key) for key in keys)
    return ChunkChange(differing, len(keys))
