from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.arrays.read_shares import cut
from orbit_ckpt._src.arrays.slices import Region


@st.composite
def regions_and_chunks(draw: st.DrawFn) -> tuple[Region, tuple[int, ...]]:
    rank = draw(st.integers(0, 3))
    start = tuple(draw(st.integers(0, 9)) for _ in range(rank))
    shape = tuple(draw(st.integers(1, 12)) for _ in range(rank))
    return Region(start, shape), tuple(draw(st.integers(1, 8)) for _ in range(rank))


@given(regions_and_chunks(), st.integers(1, 6))
def test_no_chunk_is_in_two_pieces(case: tuple[Region, tuple[int, ...]], count: int) -> None:
    region, chunk_shape = case
    pieces = cut(region, chunk_shape, count)
    assert 1 <= len(pieces) <= count

    def elements(box: Region) -> list[tuple[int, ...]]:
        return list(
            itertools.product(*(range(s, e) for s, e in zip(box.start, box.stop, strict=True)))
        )

    found = [element for piece in pieces for element in elements(piece)]
    assert sorted(found) == elements(region)
    chunks = [
        {
            tuple(i // n for i, n in zip(element, chunk_shape, strict=True))
            for element in elements(piece)
        }
        for piece in pieces
    ]
    assert sum(map(len, chunks)) == len(set().union(*chunks))


def test_pieces_are_of_about_equal_size() -> None:
    pieces = cut(Region((0, 0), (100, 8)), (10, 8), 4)
    assert [piece.shape[0] for piece in pieces] == [20, 30, 20, 30]
