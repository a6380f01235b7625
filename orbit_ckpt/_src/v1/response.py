"""The responses of operations in the background."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from typing_extensions import override

from orbit_ckpt._src.checkpointer.handle import SaveHandle
from orbit_ckpt._src.runtime.loop import run_in_background
from orbit_ckpt._src.v1.types import AsyncResponse

T = TypeVar("T")


class BackgroundResponse(AsyncResponse[T], Generic[T]):
    """The result of a coroutine that runs on another thread."""

    def __init__(self, coroutine: Coroutine[object, object, T]) -> None:
        self._outcome: Future[T] = run_in_background(coroutine)

    @override
    def result(self, timeout: float | None = None) -> T:
        """Wait for the operation, and return its result or raise its error."""
        return self._outcome.result(timeout)

    @override
    def on_complete(self, callback: Callable[[Any], object]) -> None:
        """Call a function with the result once the operation has succeeded, or now if it has."""

        def call(outcome: Future[T]) -> None:
            if outcome.exception() is None:
                callback(outcome.result())

        self._outcome.add_done_callback(call)


class SaveResponse(AsyncResponse[T], Generic[T]):
    """The result of a background save."""

    def __init__(self, handle: SaveHandle, value: T) -> None:
        """Make one.

        Args:
            handle: The save.
            value: The result once it has succeeded.
        """
        self._handle = handle
        self._value = value

    @override
    def result(self, timeout: float | None = None) -> T:
        """Wait until the checkpoint is durable.

        Raises:
            TimeoutError: The save is still in progress after `timeout` seconds.
            CheckpointError: The save failed; nothing was left behind.
        """
        self._handle.result(timeout)
        return self._value

    @override
    def on_complete(self, callback: Callable[[Any], object]) -> None:
        """Call a function with the result once the checkpoint is durable, or now if it is."""
        self._handle.call_when_saved(lambda: callback(self._value))
