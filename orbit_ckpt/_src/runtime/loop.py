"""Run coroutines and blocking calls on threads of this library."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar, cast

from typing_extensions import TypeVarTuple, override

from orbit_ckpt._src.runtime.threads import (
    has_started,
    is_exiting,
    jax_settings,
    run_in_thread,
    thread_of,
)
from orbit_ckpt._src.runtime.workers import Workers

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NOTED_ERRORS = 10
_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Maximum threads for blocking work per loop."""


def run_sync(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end and return its result.

    It runs on a separate thread, because the caller's may already run an event loop (notebooks,
    servers). The caller's context variables and JAX settings (default device, 64-bit mode) apply
    there too. An interrupt of the caller cancels the coroutine and waits for its cleanup. Where no
    thread can be started, as at the exit of some Python versions, it runs on the caller's.
    """
    runner = _Runner(coroutine)
    return run_in_thread(runner.run, here=runner.run_here, cancel=runner.cancel)


def run_in_background(coroutine: Coroutine[object, object, T]) -> Future[T]:
    """Run a coroutine on a separate thread, with the caller's settings as in `run_sync`.

    The interpreter does not exit before the coroutine ends. During interpreter exit, and where no
    thread can be started, the coroutine runs before this returns, and its error is raised.
    """
    runner = _Runner(coroutine)
    outcome, thread = thread_of(runner.run, None, daemon=False)  # the interpreter waits for it
    outcome.set_running_or_notify_cancel()  # a waiter that gives up does not cancel it
    # during exit a new thread would be cut off: the interpreter has already joined the others
    if is_exiting() or not has_started(thread):
        outcome.set_result(runner.run_here())
    return outcome


async def run_all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Run awaitables concurrently; return their results in order.

    All run to their end. The first error is raised, so that callers can catch it by its type, with
    the others as its notes.
    """
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if not errors:
        return cast(list[T], results)
    first = next((error for error in errors if not isinstance(error, Exception)), errors[0])
    others = [error for error in errors if error is not first]
    for error in others[:_NOTED_ERRORS]:
        first.add_note(f"Also failed: {error}")
    if len(others) > _NOTED_ERRORS:
        first.add_note(f"And {len(others) - _NOTED_ERRORS} more failed.")
    raise first


async def run_checked(work: Awaitable[T], check: Callable[[], object], every_s: float) -> T:
    """Run an awaitable to its end; cancel it when a periodic check, run in a thread, raises."""
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
    """Run a cleanup function to its end in a thread, however often this is cancelled."""
    # not a task: the end of the loop would cancel it while the thread keeps running
    running = asyncio.get_running_loop().run_in_executor(None, function)
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    running.result()


async def run_blocking(function: Callable[[], T]) -> T:
    """Run a function to its end in a thread, with the caller's context and JAX settings.

    A cancellation takes effect after the function returns: it cannot be stopped, and the caller
    that cancels may remove the files that it writes.
    """
    settings, context = jax_settings(), contextvars.copy_context()

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


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose `asyncio.to_thread` works until the interpreter exits."""

    def __init__(self) -> None:
        super().__init__()
        self._workers = Workers(_THREADS, "orbit_ckpt-worker")

    @override
    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        return super().run_in_executor(executor or self._workers, func, *args)

    @override
    def close(self) -> None:
        self._workers.shutdown()
        super().close()


class _Runner(Generic[T]):
    """A coroutine on an event loop, which another thread may cancel."""

    def __init__(self, coroutine: Coroutine[object, object, T]) -> None:
        self._coroutine = coroutine
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None

    def run(self) -> T:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                self._loop = runner.get_loop()
                return runner.run(self._main())
        finally:
            self._started.set()

    def run_here(self) -> T:
        """Run it on the caller's thread, even inside a running event loop."""
        with _running_loop_left():
            return contextvars.copy_context().run(self.run)

    def cancel(self) -> None:
        self._started.wait()
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _main(self) -> T:
        self._task = asyncio.create_task(self._coroutine)
        self._started.set()
        return await self._task


@contextlib.contextmanager
def _running_loop_left() -> Generator[None]:
    """Allow another event loop inside a callback of this thread's, which waits for it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        yield
        return
    task = asyncio.current_task()
    # asyncio's functions for implementers of loops
    if task is not None:
        asyncio._leave_task(loop, task)  # noqa: SLF001 - no public way
    asyncio._set_running_loop(None)  # noqa: SLF001 - no public way
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001 - no public way
        if task is not None:
            asyncio._enter_task(loop, task)  # noqa: SLF001 - no public way
