"""Run coroutines for synchronous callers, on a thread of our own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Coroutine, Generator, Iterable
from typing import Generic, TypeVar, cast

import jax

T = TypeVar("T")


def run_sync(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end and return its result.

    It runs on a thread of its own, because the caller's may already run an event loop (notebooks,
    servers). The caller's context variables and JAX settings (default device, 64-bit mode) hold
    there too. An interrupt of the caller cancels the coroutine and waits for it to clean up.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []
    runner = _Runner(coroutine)
    settings = _jax_settings(jax.config.jax_default_device, x64=jax.config.jax_enable_x64)
    context = contextvars.copy_context()

    def main() -> None:
        try:
            with settings:
                outcome.append(context.run(runner.run))
        except BaseException as error:  # handed to the caller, whatever it is
            failure.append(error)

    thread = threading.Thread(target=main, name="orbit_ckpt", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        runner.cancel()
        thread.join()
        raise
    if failure:
        raise failure[0]
    return outcome[0]


async def run_all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Run awaitables at once; return their results in order.

    If several fail, all are waited for; one error is raised as itself, several as a group.
    """
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if not errors:
        return cast(list[T], results)
    if len(errors) == 1:
        raise errors[0]
    raise BaseExceptionGroup(f"{len(errors)} operations failed", errors)


class _Runner(Generic[T]):
    """A coroutine on an event loop that another thread may cancel."""

    def __init__(self, coroutine: Coroutine[object, object, T]) -> None:
        self._coroutine = coroutine
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
        return await self._task


@contextlib.contextmanager
def _jax_settings(device: object, *, x64: bool) -> Generator[None]:
    """Apply settings that JAX keeps per thread."""
    with jax.default_device(device), jax.enable_x64(x64):
        yield
