"""Chunks of which all parts that are read consist, but none too small."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.arrays.chunk_choice import MIN_CHUNK_BYTES, read_ratio, refine_chunk_shape

COUNTS = st.sampled_from([1, 2, 3, 4, 8, 16])
GRIDS = st.lists(st.tuples(COUNTS, COUNTS), min_size=1, max_size=4)


@given(st.sampled_from([(4096, 4096), (48, 960), (3000, 7000)]), st.tuples(COUNTS, COUNTS), GRIDS)
def test_chunks_divide_what_is_written_and_are_not_too_small(
    shape: tuple[int, int], written: tuple[int, int], grids: list[tuple[int, int]]
) -> None:
    write, *reads = [
        tuple(-(-n // count) for n, count in zip(shape, counts, strict=True))
        for counts in (written, *grids)
    ]
    chunk = refine_chunk_shape(shape, write, reads, 4)
    assert all(n % c == 0 for n, c in zip(write, chunk, strict=True))
    assert math.prod(chunk) * 4 >= min(MIN_CHUNK_BYTES, math.prod(write) * 4)
    common = math.prod(math.gcd(*lengths) for lengths in zip(write, *reads, strict=True))
    if common * 4 >= MIN_CHUNK_BYTES:
        ratios = [read_ratio(shape, chunk, read) for read in reads]
        exact = [all(n % r == 0 for n, r in zip(shape, read, strict=True)) for read in reads]
        assert all(r == 1 for r, is_exact in zip(ratios, exact, strict=True) if is_exact)


def test_small_chunks_are_merged_where_it_costs_least() -> None:
    # every reader needs whole rows: merging along rows costs nothing
    assert refine_chunk_shape((64, 1 << 14), (64, 1 << 14), [(1, 1 << 14)], 4) == (16, 1 << 14)
    # merging columns would make every reader read two shards
    assert refine_chunk_shape((4096, 2048), (4096, 2048), [(4096, 64)], 4) == (4096, 64)


def test_large_refinements_are_cut_into_blocks_of_rows() -> None:
    assert refine_chunk_shape((1 << 14, 1 << 13), (1 << 14, 1 << 13), [(1 << 13, 1 << 13)], 4) == (
        1024,
        1 << 13,
    )


def test_scalars_and_empty_arrays_have_one_chunk() -> None:
    assert refine_chunk_shape((), (), [()], 4) == ()
    assert refine_chunk_shape((0, 8), (0, 8), [(0, 4)], 4) == (1, 8)
