"""Futures that handlers return."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.runtime.futures import wait_for_end
from orbit_ckpt.errors import StorageError
from orbit_ckpt.future import (
    ChainedFuture,
    CommitFutureAwaitingContractedSignals,
    NoopFuture,
)


async def returned(value: object) -> object:
    return await asyncio.to_thread(lambda: value)


async def failed() -> None:
    raise OSError("the disk is full")


def test_a_coroutine_begins_without_a_wait_for_it() -> None:
    begun = threading.Event()

    async def begin() -> None:
        begun.set()

    future = CommitFutureAwaitingContractedSignals(begin())
    assert begun.wait(60)
    assert future.result() is None


def test_a_coroutine_runs_inside_a_running_event_loop() -> None:
    async def main() -> object:
        future = CommitFutureAwaitingContractedSignals(returned(3))
        return await asyncio.to_thread(future.result)

    assert asyncio.run(main()) == 3


def test_an_error_is_raised_by_every_result_with_the_name_of_the_work() -> None:
    future = CommitFutureAwaitingContractedSignals(failed(), name="assets")
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is full") as caught:
            future.result()
        assert caught.value.__notes__ == ["Raised in assets."]


def test_a_result_is_awaited_no_longer_than_the_timeout() -> None:
    may_end = threading.Event()

    async def wait() -> None:
        await asyncio.to_thread(may_end.wait, 60)

    future = CommitFutureAwaitingContractedSignals(wait())
    with pytest.raises(TimeoutError):
        future.result(0)
    with pytest.raises(TimeoutError):
        ChainedFuture([NoopFuture(), future], may_end.clear).result(0)
    may_end.set()
    future.result()


def test_signals_to_send_are_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="send_signals"):
        CommitFutureAwaitingContractedSignals(returned(1), send_signals=["done"]).result()


def test_a_chain_calls_its_function_after_all_futures() -> None:
    called: list[Any] = []
    last: Future[None] = Future()
    chain = ChainedFuture([NoopFuture(), last], lambda: called.append(last.done()))
    last.set_result(None)
    chain.result()
    assert called == [True]


def test_a_chain_with_an_error_does_not_call_its_function() -> None:
    called: list[Any] = []
    future = CommitFutureAwaitingContractedSignals(failed())
    with pytest.raises(OSError, match="full"):
        ChainedFuture([future], lambda: called.append(1)).result()
    assert called == []


class Endless:
    """Work that ends only when the test says so, and ignores the timeout."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def result(self, timeout: float | None = None) -> None:  # noqa: ARG002 - a bad one
        self.begun.set()
        self.may_end.wait(60)


def test_the_end_of_work_is_awaited_no_longer_than_the_timeout() -> None:
    work = Endless()
    assert not wait_for_end([NoopFuture(), work], 0)
    work.may_end.set()
    assert wait_for_end([work, CommitFutureAwaitingContractedSignals(failed())], 60)


def test_an_interrupt_ends_the_wait_for_the_end_of_work() -> None:
    work = Endless()

    def interrupt() -> None:
        work.begun.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in some shells
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            wait_for_end([work], 60)
    finally:
        signal.signal(signal.SIGINT, before)
        work.may_end.set()


def test_canceled_work_has_ended() -> None:
    canceled: Future[None] = Future()
    canceled.cancel()
    assert wait_for_end([canceled], 60)


def test_a_failed_save_does_not_wait_for_work_without_end(tmp_path: Path) -> None:
    work = Endless()

    class Handler(ocp.AsyncCheckpointHandler):
        async def async_save(self, *_: Any) -> Any:
            return [CommitFutureAwaitingContractedSignals(failed()), work]

        def save(self, *_: Any) -> None:
            raise NotImplementedError

        def restore(self, *_: Any) -> None:
            raise NotImplementedError

        def finalize(self, directory: Any) -> None: ...

        def close(self) -> None: ...

    options = ocp.MultiprocessingOptions(timeout_secs=0.01)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        ocp.Checkpointer(Handler(), multiprocessing_options=options).save(tmp_path / "a", 1)
    work.may_end.set()
    assert caught.value.__cause__ is not None
    (note,) = caught.value.__cause__.__notes__
    assert "has not ended after 0.01 seconds" in note
    assert list(tmp_path.iterdir()) == []
