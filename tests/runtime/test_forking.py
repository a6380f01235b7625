from __future__ import annotations

import gc
import threading

from orbit_ckpt._src.runtime.process import ForkSafeLock
from orbit_ckpt._src.runtime.threads import CollectorPause
from tests.forks import in_child


def test_a_lock_that_another_thread_holds_is_free_in_a_child() -> None:
    lock = ForkSafeLock()
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go_on.wait()

    def take() -> str:
        with lock:
            return "taken"

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert in_child(take) == "taken"
    go_on.set()
    thread.join()


def test_a_child_forked_by_the_holder_of_a_lock_leaves_the_block() -> None:
    lock = ForkSafeLock()

    def fork_inside() -> str:
        with lock:
            child = in_child(leave_and_take)
        with lock:
            return child

    def leave_and_take() -> str:
        lock.__exit__()
        with lock, lock:
            return "taken"

    assert fork_inside() == "taken"


def test_the_collector_runs_in_a_child_forked_while_it_was_paused() -> None:
    with CollectorPause():
        assert in_child(gc.isenabled)
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off_in_a_child() -> None:
    gc.disable()
    try:
        with CollectorPause():
            assert not in_child(gc.isenabled)
        assert not gc.isenabled()
    finally:
        gc.enable()
