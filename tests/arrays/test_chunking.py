from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.arrays.slices import choose_chunk_shape, effective_chunk_bytes

Shape = tuple[int, ...]


@st.composite
def requests(draw: st.DrawFn) -> tuple[Shape, Shape, int, int | None, tuple[int, ...]]:
    """An array cut evenly over devices, and how to cut it further."""
    rank = draw(st.integers(0, 4))
    write = [draw(st.integers(0, 48)) for _ in range(rank)]
    shape = [n * draw(st.sampled_from([1, 1, 2, 4])) for n in write]
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    max_bytes = draw(st.none() | st.integers(itemsize, 1 << 16))
    axes = draw(st.lists(st.integers(0, rank - 1), unique=True)) if rank else []
    return tuple(shape), tuple(write), itemsize, max_bytes, tuple(axes)


@pytest.mark.parametrize(
    ("write_nbytes", "chunk_bytes", "file_bytes", "expected"),
    [
        (100, None, 0, None),
        (100, 7, 0, 7),
        (100, None, 100, None),
        (101, None, 100, 100),
        (100, 7, 50, 7),
        (100, 70, 50, 50),
        (10, 70, 50, 50),
    ],
)
def test_chunk_limit_is_the_smaller_of_the_one_asked_for_and_the_file_size(
    write_nbytes: int, chunk_bytes: int | None, file_bytes: int, expected: int | None
) -> None:
    found = effective_chunk_bytes(write_nbytes, chunk_bytes=chunk_bytes, file_bytes=file_bytes)
    assert found == expected


@pytest.mark.parametrize(
    ("shape", "write", "itemsize", "max_bytes", "axes", "expected"),
    [
        pytest.param((8, 6), (4, 6), 4, None, (), (4, 6), id="no limit gives the write shape"),
        pytest.param((0, 3), (0, 3), 4, None, (), (1, 3), id="empty axes give 1"),
        pytest.param((), (), 8, 8, (), (), id="a scalar is one chunk"),
        pytest.param((8, 8), (8, 8), 4, None, (0,), (1, 8), id="shard axes are cut completely"),
        pytest.param((8, 8), (8, 8), 4, None, (1, 0), (1, 1), id="all shard axes are cut"),
        pytest.param((8, 8), (8, 8), 4, 16, (0,), (1, 4), id="shard axes first, then the limit"),
        pytest.param((16, 16), (16, 16), 2, 128, (), (8, 8), id="longest axis first"),
        pytest.param((16, 8), (8, 8), 4, 128, (), (4, 8), id="sharded axes before others"),
        pytest.param((16, 64), (2, 64), 4, 128, (), (1, 32), id="others once those are used up"),
        pytest.param((15,), (15,), 1, 5, (), (5,), id="by the smallest prime factor"),
        pytest.param((7,), (7,), 1, 6, (), (1,), id="a prime axis at once"),
    ],
)
def test_chunk_shape(
    shape: Shape,
    write: Shape,
    itemsize: int,
    max_bytes: int | None,
    axes: tuple[int, ...],
    expected: Shape,
) -> None:
    found = choose_chunk_shape(
        shape, write, itemsize=itemsize, max_bytes=max_bytes, shard_axes=axes
    )
    assert found == expected


@given(requests())
def test_chunks_divide_what_a_device_writes_and_fit_the_limit(
    request_: tuple[Shape, Shape, int, int | None, tuple[int, ...]],
) -> None:
    shape, write, itemsize, max_bytes, axes = request_
    chunk = choose_chunk_shape(
        shape, write, itemsize=itemsize, max_bytes=max_bytes, shard_axes=axes
    )
    assert all(n % c == 0 for n, c in zip(write, chunk, strict=True) if n)
    assert all(chunk[axis] == 1 for axis in axes)
    assert max_bytes is None or math.prod(chunk) * itemsize <= max_bytes


@given(requests())
def test_chunks_are_those_that_orbax_chooses(
    request_: tuple[Shape, Shape, int, int | None, tuple[int, ...]],
) -> None:
    orbax = pytest.importorskip(
        "orbax.checkpoint._src.arrays.subchunking", reason="Orbax is only in the test group"
    )
    shape, write, itemsize, max_bytes, axes = request_
    expected = orbax.choose_chunk_shape(
        shape, write, np.dtype(f"u{itemsize}"), max_bytes, shard_axes=axes
    )
    assert expected == choose_chunk_shape(
        shape, write, itemsize=itemsize, max_bytes=max_bytes, shard_axes=axes
    )


def test_limit_below_one_element_is_an_error() -> None:
    with pytest.raises(ValueError, match="chunk_byte_size=3 must be >= 4"):
        choose_chunk_shape((4,), (4,), itemsize=4, max_bytes=3)


@pytest.mark.parametrize("axis", [2, -1])
def test_shard_axis_out_of_range_is_an_error(axis: int) -> None:
    with pytest.raises(ValueError, match="must be non-negative and less than rank=2"):
        choose_chunk_shape((4, 4), (4, 4), itemsize=4, shard_axes=(axis,))


def test_shapes_of_different_rank_are_an_error() -> None:
    with pytest.raises(ValueError, match="must have the same length"):
        choose_chunk_shape((4, 4), (4,), itemsize=4)
