from __future__ import annotations

import threading

import pytest

from orbit_ckpt._src.runtime.workers import Workers


def test_results_and_errors_are_those_of_the_calls() -> None:
    with Workers(2, "test") as workers:
        assert list(workers.map(abs, range(-20, 0))) == [*range(20, 0, -1)]
        with pytest.raises(ZeroDivisionError):
            workers.submit(divmod, 1, 0).result()


def test_at_most_so_many_threads_work_at_once() -> None:
    together = threading.Barrier(3)
    with Workers(2, "test") as workers:
        futures = [workers.submit(together.wait) for _ in range(2)]
        third = workers.submit(threading.get_ident)
        assert not third.done()
        together.wait()
        assert {future.result() for future in futures} | {2} == {0, 1, 2}
        third.result()


def test_no_thread_stays_without_work() -> None:
    before = threading.active_count()
    workers = Workers(4, "test")
    workers.submit(abs, 1).result()
    workers.shutdown()
    assert threading.active_count() == before


def test_queued_work_can_be_dropped_at_the_end() -> None:
    go_on = threading.Event()
    begun = threading.Event()
    workers = Workers(1, "test")
    first = workers.submit(lambda: (begun.set(), go_on.wait()))
    second = workers.submit(abs, 1)
    begun.wait()
    threading.Timer(0.01, go_on.set).start()
    workers.shutdown(cancel_futures=True)
    assert first.done()
    assert second.cancelled()
    with pytest.raises(RuntimeError, match="no work is taken"):
        workers.submit(abs, 1)


@pytest.mark.usefixtures("no_threads")
def test_without_threads_the_caller_does_the_work() -> None:
    workers = Workers(4, "test")
    assert workers.submit(threading.get_ident).result() == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        workers.submit(divmod, 1, 0).result()
    workers.shutdown()


def test_work_waits_for_a_thread_that_works_if_no_other_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()
    workers = Workers(4, "test")
    first = workers.submit(lambda: go_on.wait() and threading.get_ident())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError()))
        second = workers.submit(threading.get_ident)
    assert not second.done()
    go_on.set()
    assert second.result() == first.result()
    workers.shutdown()
