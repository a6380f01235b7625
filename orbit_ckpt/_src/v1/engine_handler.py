"""The base of the built-in handlers, which save in two phases through the engine."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.v1.types import CheckpointableHandler, PathAwaitingCreation

RECORDED = "orbax.checkpoint.experimental.v1._src.handlers."
"""What Orbax finds its handlers by; written into checkpoints so that it can load them."""

_finalizers: ContextVar[list[Callable[[], None]] | None] = ContextVar(
    "orbit_ckpt_v1_finalizers", default=None
)
"""What the save in progress has to do at its end, on one process."""


@contextlib.contextmanager
def collect_finalizers(found: list[Callable[[], None]]) -> Generator[None]:
    """Collect what built-in handlers that are called in the block have to do at the end."""
    token = _finalizers.set(found)
    try:
        yield
    finally:
        _finalizers.reset(token)


class EngineHandler(CheckpointableHandler[Any, Any], ABC):
    """Base of the built-in handlers: a save in two phases, and a blocking load."""

    RECORDED_AS: ClassVar[str]

    @abstractmethod
    async def stage(self, directory: Path, checkpointable: Any, *, copy: bool) -> Commit:
        """Copy a checkpointable and return the commit that writes it into a directory."""

    @abstractmethod
    def read(self, directory: Path, abstract: Any) -> Any:
        """Return a stored checkpointable."""

    @override
    async def save(self, directory: PathAwaitingCreation, checkpointable: Any) -> Awaitable[None]:
        """Copy what may change, and return an awaitable that writes it.

        Called by the handler of a save in progress, it leaves the last step, which only one process
        performs, to that save.
        """
        commit = await self.stage(resolve_path(directory.path), checkpointable, copy=True)
        around = _finalizers.get()
        if around is not None:
            around.append(commit.finalize)

        async def write() -> None:
            await directory.await_creation()
            await commit.run()
            if around is None:
                await asyncio.to_thread(commit.finalize)

        return write()

    @override
    async def load(self, directory: Path, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        """Return an awaitable that reads the checkpointable."""
        path = resolve_path(directory)
        return asyncio.to_thread(self.read, path, abstract_checkpointable)

    @override
    async def metadata(self, directory: Path) -> Any:
        """Return nothing: there is no abstract form."""
        return None
