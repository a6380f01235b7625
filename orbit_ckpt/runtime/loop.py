"""Run coroutines for synchronous callers, on a thread of our own."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 # pyright: ignore[reportUnusedImport] - see below
import contextlib
import contextvars
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar, cast

import jax

T = TypeVar("T")

_ERRORS_TOLD = 10
_MAX_PAUSE_S = 10.0


def run_sync(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end and return its result.

    It runs on a thread of its own, because the caller's may already run an event loop (notebooks,
    servers). The caller's context variables and JAX settings (default device, 64-bit mode) hold
    there too. An interrupt of the caller cancels the coroutine and waits for it to clean up.
    """
    runner = _Runner(coroutine, pause_collector=True)
    outcome, thread = _thread_of(runner)
    try:
        thread.start()
        return outcome.result()
    except BaseException:  # raised again; mostly an interrupt
        # not Thread.join: Python 3.11 takes a thread for ended once a join has been interrupted
        if thread.ident is not None and not outcome.done():
            runner.cancel()
            wait([outcome])
        raise


def run_in_background(coroutine: Coroutine[object, object, T]) -> Future[T]:
    """Run a coroutine on a thread of its own, with the caller's settings as in `run_sync`.

    The interpreter does not end before it has ended.

    Raises:
        RuntimeError: No thread can be started; nothing of the coroutine has run.
    """
    outcome, thread = _thread_of(_Runner(coroutine, pause_collector=False))
    outcome.set_running_or_notify_cancel()  # who stops to wait for it does not cancel it
    _running.add(outcome)
    try:
        thread.start()
    except Exception:  # raised again
        _running.discard(outcome)
        coroutine.close()
        raise
    return outcome


def _thread_of(runner: _Runner[T]) -> tuple[Future[T], threading.Thread]:
    """Return a thread that is not started yet, and where it will leave its result."""
    outcome: Future[T] = Future()
    settings = _jax_settings()
    context = contextvars.copy_context()

    def main() -> None:
        try:
            with settings:
                result = context.run(runner.run)
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    return outcome, threading.Thread(target=main, name="orbit_ckpt", daemon=True)


_running: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
"""What the end of the interpreter waits for; it is process-wide, and so is this."""


def _wait_for_running() -> None:
    wait(list(_running))


# At the end, executors of threads refuse work before `atexit` functions are called. What is
# registered here is called before that, because their module registered itself earlier.
_register_at_end = vars(threading).get("_register_atexit", atexit.register)
_register_at_end(_wait_for_running)


async def run_all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Run awaitables at once; return their results in order.

    All are waited for. The first error is raised, so that callers can catch it by its type; the
    others are told in its notes.
    """
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if not errors:
        return cast(list[T], results)
    first = next((error for error in errors if not isinstance(error, Exception)), errors[0])
    others = [error for error in errors if error is not first]
    for error in others[:_ERRORS_TOLD]:
        first.add_note(f"Also failed: {error}")
    if len(others) > _ERRORS_TOLD:
        first.add_note(f"And {len(others) - _ERRORS_TOLD} more failed.")
    raise first


async def run_checked(work: Awaitable[T], check: Callable[[], object], every_s: float) -> T:
    """Run an awaitable to its end; stop it when a check, made now and then in a thread, raises."""
    running = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([running], timeout=every_s))[0]:
            await asyncio.to_thread(check)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait([running])
    return running.result()


async def clean_up(function: Callable[[], object]) -> None:
    """Run what cleans up in a thread, and to its end, however often this is cancelled."""
    # no task: the end of a loop would cancel it, and the thread would go on alone
    running = asyncio.get_running_loop().run_in_executor(None, function)
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    running.result()


async def run_blocking(function: Callable[[], T]) -> T:
    """Run a function in a thread, with the caller's context and JAX settings, and to its end.

    A cancellation takes effect once the function has returned: what it does cannot be stopped, and
    whoever cancels may remove the files that it writes.
    """
    settings, context = _jax_settings(), contextvars.copy_context()

    def run() -> T:
        with settings:
            return context.run(function)

    running = asyncio.get_running_loop().run_in_executor(None, run)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return running.result()


class _Runner(Generic[T]):
    """A coroutine on an event loop that another thread may cancel."""

    def __init__(self, coroutine: Coroutine[object, object, T], *, pause_collector: bool) -> None:
        self._coroutine = coroutine
        self._paused = _collector_paused if pause_collector else contextlib.nullcontext
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None

    def run(self) -> T:
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                return runner.run(self._main())
        finally:
            self._started.set()

    def cancel(self) -> None:
        self._started.wait()
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _main(self) -> T:
        self._task = asyncio.create_task(self._coroutine)
        self._started.set()
        with self._paused():
            return await self._task


@contextlib.contextmanager
def _collector_paused() -> Generator[None]:
    """Keep Python's cycle collector from running for the next ten seconds.

    Planning and rebuilding a tree makes many objects, none of them garbage. The collector takes
    their number for a reason to go through all objects of the process, which in one that has JAX
    takes longer than the work itself. It is paused for all threads, hence the limit.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    resume = asyncio.get_running_loop().call_later(_MAX_PAUSE_S, gc.enable)
    try:
        yield
    finally:
        resume.cancel()
        gc.enable()


def _jax_settings() -> contextlib.AbstractContextManager[None]:
    """Return a context that gives another thread the settings that JAX keeps per thread."""
    device: Any = getattr(jax.config, "jax_default_device")  # noqa: B009 - untyped
    x64: Any = getattr(jax.config, "jax_enable_x64")  # noqa: B009 - untyped

    @contextlib.contextmanager
    def apply() -> Generator[None]:
        with jax.default_device(device), jax.enable_x64(x64):
            yield

    return apply()
