"""Memory that is handed out is aligned, writable and nobody else's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.arrays.memory import Arena, aligned_empty, available_bytes


@given(
    sizes=st.lists(st.integers(0, 5000), max_size=40),
    announced=st.integers(0, 20_000),
)
def test_no_two_pieces_share_memory(sizes: list[int], announced: int) -> None:
    arena = Arena(announced)
    pieces = [np.frombuffer(arena.allocate(size), np.uint8) for size in sizes]
    assert [piece.nbytes for piece in pieces] == sizes
    for number, piece in enumerate(pieces):
        assert piece.ctypes.data % 64 == 0 or not piece.nbytes
        piece[:] = number % 251
    assert all((piece == number % 251).all() for number, piece in enumerate(pieces))


def test_arrays_of_their_own_are_aligned_and_writable() -> None:
    for shape in ((), (0, 3), (7,), (1000, 1001)):
        array = aligned_empty(shape, np.dtype(np.float64))
        assert array.shape == shape
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0 or not array.nbytes


def test_there_is_some_memory_to_be_had() -> None:
    available = available_bytes()
    assert available is None or available > 1 << 20
