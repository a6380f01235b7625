"""Memory that is kept between saves: never shared, bounded, and given back."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

from orbit_ckpt._src.arrays.kept_memory import KeptMemory
from orbit_ckpt._src.arrays.memory import Arena
from tests.forks import in_child

MB = 1 << 20


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def test_memory_is_reused_once_no_view_of_it_is_left() -> None:
    memory = KeptMemory()
    block = memory.allocate(3 * MB)
    place = address(block)
    view = np.frombuffer(block, np.uint8)[5:]
    del block
    assert memory.nbytes == 0
    assert address(memory.allocate(3 * MB)) != place
    del view
    assert memory.nbytes == 2 * 4 * MB  # whole huge pages
    blocks = [memory.allocate(3 * MB + 1) for _ in range(3)]
    assert place in map(address, blocks)
    assert len(set(map(address, blocks))) == 3
    assert {block.nbytes for block in blocks} == {3 * MB + 1}
    assert not any(address(block) % 64 for block in blocks)


def test_what_a_save_does_not_need_is_given_back() -> None:
    memory = KeptMemory()
    for size in (2 * MB, 6 * MB):
        memory.allocate(size)
    block = memory.allocate(2 * MB)
    memory.trim()
    assert memory.nbytes == 0
    del block
    assert memory.nbytes == 2 * MB


@pytest.mark.parametrize("most", [0, 5 * MB, None])
def test_no_more_is_kept_than_allowed(most: int | None) -> None:
    memory = KeptMemory(most)
    blocks = [memory.allocate(2 * MB) for _ in range(4)]
    blocks.clear()
    assert memory.nbytes == {0: 0, 5 * MB: 4 * MB, None: 8 * MB}[most]


def test_closed_memory_keeps_nothing() -> None:
    memory = KeptMemory()
    memory.allocate(2 * MB)
    block = memory.allocate(4 * MB)
    memory.close()
    assert memory.nbytes == 0
    block[:] = bytes(4 * MB)
    del block
    assert memory.nbytes == 0


def test_a_forked_child_keeps_nothing() -> None:
    memory = KeptMemory()
    memory.allocate(2 * MB)

    def after_fork() -> int:
        memory.after_fork_in_child()
        return memory.nbytes

    with memory._lock:  # by another thread, for all that the child knows
        assert in_child(after_fork) == 0
    assert memory.nbytes == 2 * MB


def test_memory_is_given_back_after_a_while() -> None:
    memory = KeptMemory(max_age_s=0.01)
    memory.allocate(2 * MB)
    assert memory.nbytes == 2 * MB
    memory.start_ageing()
    deadline = time.monotonic() + 30
    while memory.nbytes:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_timer_keeps_nothing_alive() -> None:
    before = threading.active_count()
    memory = KeptMemory(max_age_s=1000)
    memory.start_ageing()  # nothing is kept
    assert threading.active_count() == before
    memory.allocate(2 * MB)
    memory.start_ageing()
    assert threading.active_count() == before + 1
    memory.trim()
    while threading.active_count() > before:
        time.sleep(0.001)


def test_without_threads_memory_is_given_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    memory = KeptMemory(max_age_s=1000)
    memory.allocate(2 * MB)
    memory.start_ageing()
    assert memory.nbytes == 0


def test_memory_may_return_while_another_block_is_allocated() -> None:
    memory = KeptMemory()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(200):
                arena = Arena(8 * MB, memory.allocate)
                pieces = [np.frombuffer(arena.allocate(2 * MB), np.uint8) for _ in range(2)]
                for piece in pieces:
                    piece[::MB] = number % 251
                assert all((piece[::MB] == number % 251).all() for piece in pieces)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not errors
    assert 0 < memory.nbytes <= 4 * 2 * 8 * MB
