"""Futures that handlers return."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

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
