"""Call functions on threads of this library, with the caller's settings, the collector paused."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from orbit_ckpt._src.lazy_imports import loaded_jax
from orbit_ckpt._src.runtime.process import reset_in_child

T = TypeVar("T")

PAUSE_VARIABLE = "ORBIT_CKPT_GC_PAUSE_MS"
"""Environment variable with the longest pause in milliseconds; 0 disables pauses."""

_DEFAULT_MS = 200


class CollectorPause:
    """A short pause of the cycle collector, unless it was off before.

    Planning and rebuilding a tree create many objects, none of them garbage. Their number triggers
    collections of all objects of the process, which in a process with JAX take longer than the work
    itself. The pause applies to all threads, hence its limit.

    A context manager for a thread that no signal interrupts; any thread may end the pause earlier.

    Attributes:
        limit_s: The longest pause, in seconds; the thread that waits for the work then ends it.
    """

    def __init__(self) -> None:
        self.limit_s = _limit_s()
        self._is_paused = False

    def __enter__(self) -> None:
        if self.limit_s and gc.isenabled():
            self._is_paused = True
            reset_in_child(self)
            gc.disable()

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Re-enable the collector if this pause disabled it."""
        if self._is_paused:
            gc.enable()
            self._is_paused = False

    def after_fork_in_child(self) -> None:
        """End the pause: the thread that would end it is not in the child."""
        self.end()


def _limit_s() -> float:
    given = os.environ.get(PAUSE_VARIABLE, "")
    return (int(given) if given.isdecimal() else _DEFAULT_MS) / 1000


def run_in_thread(
    function: Callable[[], T],
    *,
    here: Callable[[], T] | None = None,
    cancel: Callable[[], object] | None = None,
) -> T:
    """Call a function on a separate thread and return its result.

    The caller's context variables and JAX settings (default device, 64-bit mode) apply there too.
    An interrupt of the caller waits for the function to end. Where no thread can be started, as at
    the exit of some Python versions, it runs on the caller's.

    Args:
        function: The function.
        here: What to call where no thread can be started; None for the function itself.
        cancel: Called after an interrupt, to end the function early.
    """
    pause = CollectorPause()
    outcome, thread = thread_of(function, pause, daemon=True)  # the caller waits
    try:
        if not has_started(thread):
            return (here or function)()
        if wait([outcome], pause.limit_s).not_done:
            pause.end()
        return outcome.result()
    except BaseException:  # re-raised; mostly an interrupt
        # not Thread.join: Python 3.11 considers a thread ended once a join is interrupted
        if thread.ident is not None and not outcome.done():
            pause.end()
            if cancel is not None:
                cancel()
            wait([outcome])
        raise


def is_exiting() -> bool:
    """Return whether the main thread has ended; `atexit` functions and threads may still run."""
    return not threading.main_thread().is_alive()


def has_started(thread: threading.Thread) -> bool:
    """Start a thread; return False if none can be started."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def thread_of(
    function: Callable[[], T], pause: CollectorPause | None, *, daemon: bool
) -> tuple[Future[T], threading.Thread]:
    """Return an unstarted thread that calls a function, and the future of its result."""
    outcome: Future[T] = Future()
    settings = jax_settings()
    context = contextvars.copy_context()

    def main() -> None:
        try:
            with pause or contextlib.nullcontext(), settings:
                result = context.run(function)
        except BaseException as error:  # any error goes to the caller
            outcome.set_exception(error)
            if not daemon and is_exiting():
                raise  # no waiter is left; `threading.excepthook` prints it
        else:
            outcome.set_result(result)

    return outcome, threading.Thread(target=main, name="orbit_ckpt", daemon=daemon)


def jax_settings() -> contextlib.AbstractContextManager[None]:
    """Return a context manager that applies the caller's JAX settings to another thread."""
    jax = loaded_jax()
    if jax is None:
        return contextlib.nullcontext()
    device: Any = jax.config.jax_default_device
    x64: Any = jax.config.jax_enable_x64

    @contextlib.contextmanager
    def apply() -> Generator[None]:
        with jax.default_device(device), jax.enable_x64(x64):
            yield

    return apply()
