from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orbit_ckpt._src.runtime.loop import run_all, run_in_background, run_sync

variable = contextvars.ContextVar("variable", default="default")


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, whatever runs the tests."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


async def answer() -> int:
    return 42


async def fail(message: str) -> int:
    raise ValueError(message)


def test_result_is_returned() -> None:
    assert run_sync(answer()) == 42


def test_error_is_raised_as_itself() -> None:
    with pytest.raises(ValueError, match="boom"):
        run_sync(fail("boom"))


def test_caller_may_run_an_event_loop() -> None:
    async def notebook_cell() -> int:
        return run_sync(answer())

    assert asyncio.run(notebook_cell()) == 42


def test_calls_may_be_nested() -> None:
    async def outer() -> int:
        return run_sync(answer())

    assert run_sync(outer()) == 42


@pytest.mark.parametrize("x64", [False, True])
def test_64_bit_mode_of_the_caller_holds(x64: bool) -> None:
    async def dtype() -> np.dtype:
        return jnp.asarray(np.float64(1)).dtype

    with jax.enable_x64(x64):
        assert run_sync(dtype()) == (np.float64 if x64 else np.float32)


def test_default_device_of_the_caller_holds() -> None:
    async def devices() -> set[jax.Device]:
        return jnp.zeros(1).devices()

    with jax.default_device(jax.devices()[3]):
        assert run_sync(devices()) == {jax.devices()[3]}
    assert run_sync(devices()) == {jax.devices()[0]}


def test_context_variables_of_the_caller_hold() -> None:
    async def value() -> str:
        return variable.get()

    token = variable.set("changed")
    try:
        assert run_sync(value()) == "changed"
    finally:
        variable.reset(token)


@pytest.mark.usefixtures("interrupts")
def test_interrupt_cancels_the_coroutine_and_waits_for_it_to_clean_up() -> None:
    events: list[str] = []

    async def wait_forever() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            events.append("cleaned up")
            raise

    with pytest.raises(KeyboardInterrupt):
        run_sync(wait_forever())
    assert events == ["cleaned up"]


def test_no_thread_remains() -> None:
    before = threading.active_count()
    run_sync(answer())
    assert threading.active_count() == before


def test_results_come_in_the_order_of_their_awaitables() -> None:
    async def main() -> list[int]:
        first_may_end = asyncio.Event()

        async def first() -> int:
            await first_may_end.wait()
            return 1

        async def second() -> int:
            first_may_end.set()
            return 2

        return await run_all([first(), second()])

    assert run_sync(main()) == [1, 2]


def test_single_failure_is_raised_after_all_others_have_ended() -> None:
    ended: list[str] = []

    async def slow() -> int:
        await asyncio.sleep(0)
        ended.append("slow")
        return 0

    with pytest.raises(ValueError, match="boom"):
        run_sync(run_all([fail("boom"), slow()]))
    assert ended == ["slow"]


def test_first_of_several_failures_is_raised_and_tells_of_the_others() -> None:
    with pytest.raises(ValueError, match="one") as caught:
        run_sync(run_all([fail("one"), answer(), *(fail(str(i)) for i in range(12))]))
    notes = caught.value.__notes__
    assert notes[:2] == ["Also failed: 0", "Also failed: 1"]
    assert notes[-1] == "And 2 more failed."


async def collector_runs() -> bool:
    return gc.isenabled()


def test_the_collector_is_paused_and_runs_again() -> None:
    assert not run_sync(collector_runs())
    assert gc.isenabled()


def test_the_collector_runs_again_after_an_error_and_after_an_interrupt() -> None:
    async def raise_error(error: type[BaseException]) -> None:
        assert not gc.isenabled()
        raise error

    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            run_sync(raise_error(error))
        assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        assert not run_sync(collector_runs())
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_is_paused_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBIT_CKPT_GC_PAUSE_MS", "1")

    async def block() -> bool:
        while not gc.isenabled():  # the loop itself may be blocked, by a slow disk for example
            pass
        return gc.isenabled()

    assert run_sync(block())


def test_the_pause_of_the_collector_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBIT_CKPT_GC_PAUSE_MS", "0")
    assert run_sync(collector_runs())


async def where_blocking_work_runs() -> tuple[int, int]:
    return threading.get_ident(), await asyncio.to_thread(threading.get_ident)


@pytest.mark.usefixtures("no_threads")
def test_without_threads_everything_runs_on_the_callers() -> None:
    here = threading.get_ident()
    assert run_sync(where_blocking_work_runs()) == (here, here)
    assert run_in_background(where_blocking_work_runs()).result() == (here, here)
    assert gc.isenabled()


@pytest.mark.usefixtures("no_threads")
def test_without_threads_errors_are_raised_at_once() -> None:
    for run in (run_sync, run_in_background):
        with pytest.raises(ValueError, match="boom"):
            run(fail("boom"))


@pytest.mark.usefixtures("no_threads")
def test_without_threads_the_caller_may_run_an_event_loop() -> None:
    async def nested() -> int:
        return await asyncio.to_thread(run_sync, answer())

    async def notebook_cell() -> tuple[int, asyncio.Task[Any] | None]:
        async with asyncio.timeout(30):
            first = run_sync(nested())
            await asyncio.sleep(0)
            return first, asyncio.current_task()

    result, task = asyncio.run(notebook_cell())
    assert result == 42
    assert task is not None


def test_while_the_interpreter_ends_background_work_is_done_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orbit_ckpt._src.runtime.loop.is_exiting", lambda: True)
    assert run_in_background(answer()).done()
    with pytest.raises(ValueError, match="boom"):
        run_in_background(fail("boom"))
