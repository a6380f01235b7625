"""Save and restore one item through its handler, including its overridden methods.

The handlers of this package save in two phases, `stage` and the commit that it returns. Their base,
`ItemHandler`, builds `save` and `async_save` from the two; subclasses override these, and other
handlers wrap them. Overrides are always called: `stage` is used directly only if no subclass of
its class overrides them. An item that an override saves through `super()`, or through a handler
that it wraps, becomes part of the save around it: the primary process finishes it when all
processes have written.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from typing_extensions import override

from orbit_ckpt._src.items.arguments import CheckpointArgs, PassedArgs, register_with_handler
from orbit_ckpt._src.items.base import CheckpointHandler, StagingHandler
from orbit_ckpt._src.items.foreign import foreign_path
from orbit_ckpt._src.runtime.checks import depth_of, is_overridden
from orbit_ckpt._src.runtime.commit import Commit, Progress
from orbit_ckpt._src.runtime.futures import begin
from orbit_ckpt._src.runtime.loop import run_all, run_blocking, run_in_background, run_sync
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.durable import sync_files
from orbit_ckpt._src.storage.inner_path import inner_file
from orbit_ckpt._src.storage.integrity import open_checked, renew_manifest
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.storage.store_view import list_anew

SaveT = TypeVar("SaveT", bound=CheckpointArgs)


class _Result(Protocol):
    def result(self, timeout: float | None = None) -> object: ...


async def stage_item(
    handler: CheckpointHandler, directory: Path, args: Mapping[str, object], *, copy: bool
) -> Commit:
    """Stage an item; a handler that cannot stage saves it at once.

    Args:
        handler: The item's handler.
        directory: Where to write it.
        args: Arguments of the handler's `save`.
        copy: Whether the caller may change the item before the commit has run.
    """
    method = _overriding_method(handler, copy=copy)
    if method is None:
        commit = await cast(StagingHandler, handler).stage(directory, args["args"], copy=copy)
        if is_overridden(handler, "finalize", since="stage"):
            return _with_finalize(handler, directory, commit)
        return commit
    await asyncio.to_thread(directory.mkdir, exist_ok=True)
    path = foreign_path(handler, directory)
    positional, named = _unpack(args)
    parts = _Parts(directory, copy=copy)
    futures: Sequence[_Result] = ()
    save: Any = getattr(handler, method)
    with parts.collected(handler, method):
        if method == "async_save":
            futures = _begin(await save(path, *positional, **named))
        else:
            await run_blocking(partial(save, path, *positional, **named))

    async def write() -> None:
        await parts.run()
        for future in futures:
            await asyncio.to_thread(future.result)

    def finalize() -> None:
        parts.finalize()
        _call_finalize(handler, directory)

    return Commit(write, finalize, parts.progress, parts.recorded_as)


def _begin(futures: Sequence[_Result] | None) -> Sequence[_Result]:
    """Note the futures of a handler's `async_save` in the save around it, and return them."""
    found = futures or ()
    begin(future for future in found if not isinstance(future, _Part))  # a part begins later
    return found


def _overriding_method(handler: CheckpointHandler, *, copy: bool) -> str | None:
    """Return the overridden method (`save` or `async_save`) to call, None to use `stage`."""
    save, async_save = depth_of(handler, "save"), depth_of(handler, "async_save")
    is_ours = isinstance(handler, StagingHandler)
    if is_ours and min(save, async_save) >= depth_of(handler, "stage"):
        return None
    if not hasattr(handler, "async_save"):
        return "save"
    if save == async_save:  # both are overridden
        return "save" if is_ours and not copy else "async_save"
    return "save" if save < async_save else "async_save"


def _unpack(args: Mapping[str, object]) -> tuple[Sequence[object], Mapping[str, object]]:
    """Return the positional and the named arguments for a handler's method."""
    given = args.get("args")
    return (given.args, given.kwargs) if isinstance(given, PassedArgs) else ((), args)


def _with_finalize(handler: CheckpointHandler, directory: Path, commit: Commit) -> Commit:
    def finalize() -> None:
        commit.finalize()
        _call_finalize(handler, directory)

    return Commit(commit.run, finalize, lambda: commit.progress, commit.recorded_as)


def _call_finalize(handler: CheckpointHandler, directory: Path) -> None:
    """Call a handler's own `finalize`; update the manifest for files that it changes."""
    before = directory_of(directory).fingerprints()
    handler.finalize(foreign_path(handler, directory))
    list_anew()
    if before is None or before != directory_of(directory).fingerprints():
        renew_manifest(directory)
    sync_files(directory)  # it may not have synced them


class _Parts:
    """The parts of a save that a handler saves through other handlers or its base class."""

    def __init__(self, directory: Path, *, copy: bool) -> None:
        self.copy = copy
        self._directory = resolve_path(directory)
        self._parts: list[_Part] = []
        self._asked: object = None

    @contextlib.contextmanager
    def collected(self, handler: object, method: str) -> Generator[None]:
        """Collect items saved below the directory while a handler's method runs."""
        self._asked = handler if method == "async_save" else None
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def is_asking(self, handler: object) -> bool:
        """Return whether a handler's `async_save` is running."""
        return self._asked is handler

    def holds(self, path: Path) -> bool:
        """Return whether a directory is part of this save."""
        return path == self._directory or self._directory in path.parents

    def add(self, path: Path, commit: Commit, *, has_run: bool = False) -> _Part:
        """Add a part; it is finalized only at the end of the save."""
        part = _Part(path, commit, has_run=has_run)
        self._parts.append(part)
        return part

    async def run(self) -> None:
        """Write the parts for which no caller has waited."""
        await run_all(part.run() for part in self._parts)

    def finalize(self) -> None:
        """Finish all parts."""
        for part in self._parts:
            part.commit.finalize()

    def progress(self) -> Progress:
        """Progress of the parts written so far."""
        return sum((part.commit.progress for part in self._parts), Progress())

    @property
    def recorded_as(self) -> Mapping[str, str] | None:
        """Typestrs of the items if the parts are several named items."""
        found = [part.commit.recorded_as for part in self._parts if part.path == self._directory]
        return next((names for names in found if names is not None), None)


_current: ContextVar[_Parts | None] = ContextVar("orbit_ckpt_parts", default=None)
"""The save of an item in progress, in the context of the handler's method."""


class _Part:
    """One part, which is also the future that `async_save` returns for it."""

    def __init__(self, path: Path, commit: Commit, *, has_run: bool) -> None:
        self.path = path
        self.commit = commit
        self._outcome: Future[None] = Future()
        self._unclaimed = [self]  # the caller that pops it writes the part
        if has_run:
            self._unclaimed.clear()
            self._outcome.set_result(None)

    def result(self, timeout: float | None = None) -> None:
        """Write the part unless another caller does; return once it is written.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._claims():
            run_sync(self._write())
        self._outcome.result(timeout)

    async def run(self) -> None:
        """Do the same as `result` in a coroutine."""
        if self._claims():
            await self._write()
        await asyncio.to_thread(self._outcome.result)

    def _claims(self) -> bool:
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    async def _write(self) -> None:
        try:
            await self.commit.run()
        except BaseException as error:  # raised again
            self._outcome.set_exception(error)
            raise
        self._outcome.set_result(None)


def _parts_around(path: Path) -> _Parts | None:
    """Return the save to which a directory belongs, None if it is saved on its own."""
    parts = _current.get()
    return parts if parts is not None and parts.holds(path) else None


class ItemHandler(CheckpointHandler, StagingHandler, Generic[SaveT]):
    """Base of the item handlers of this package, which implement `stage` and `restore`.

    A subclass names its argument classes in its class statement, which registers them;
    `JsonHandler` is the shortest example.
    """

    _save_args: ClassVar[type[CheckpointArgs]]

    @override
    def __init_subclass__(
        cls,
        *,
        save_args: type[SaveT] | None = None,
        restore_args: type[CheckpointArgs] | None = None,
    ) -> None:
        super().__init_subclass__()
        if save_args is not None:
            cls._save_args = register_with_handler(cls, for_save=True)(save_args)
        if restore_args is not None:
            register_with_handler(cls, for_restore=True)(restore_args)

    @override
    def save(
        self,
        directory: PathLike,
        item: Any = None,
        save_args: Any = None,
        args: SaveT | None = None,
    ) -> None:
        """Write an item into an existing empty directory; not atomic by itself.

        As in Orbax it calls `async_save` if a subclass overrides that. Called by an override of
        `save`, it leaves the final step, which only one process performs, to the enclosing save.

        Args:
            directory: Where to write.
            item: The item, if `args` is not given.
            save_args: Its options, if any and if `args` is not given.
            args: What to save.

        Raises:
            TypeError: The handler cannot save such an item.
            StorageError: The storage refused a write.
        """
        path = resolve_path(directory)
        args = self._arguments(item, save_args) if args is None else args
        parts = _parts_around(path)
        is_asked = parts is not None and parts.is_asking(self)
        if is_overridden(self, "async_save", since="stage") and not is_asked:
            _save_through_override(self, path, args, parts)
            return

        async def both_phases() -> Commit:
            commit = await self.stage(path, args, copy=False)
            await commit.run()
            return commit

        commit = run_sync(both_phases())
        if parts is None:
            commit.finalize()
        else:
            parts.add(path, commit, has_run=True)

    async def async_save(
        self,
        directory: PathLike,
        item: Any = None,
        save_args: Any = None,
        args: SaveT | None = None,
    ) -> list[Future[None]]:
        """Copy an item and save it in the background; for the arguments see `save`.

        Returns:
            Futures of the remaining work. Called by an override of `async_save`, the item is part
            of the enclosing save; otherwise the write has started, and also finishes the directory.
        """
        path = resolve_path(directory)
        args = self._arguments(item, save_args) if args is None else args
        parts = _parts_around(path)
        commit = await self.stage(path, args, copy=True if parts is None else parts.copy)
        if parts is not None:
            return [cast("Future[None]", parts.add(path, commit))]

        async def finish() -> None:
            await commit.run()
            await asyncio.to_thread(commit.finalize)

        return [run_in_background(finish())]

    def _arguments(self, item: Any, save_args: Any) -> SaveT:
        """Build arguments from fields; one of these may be the arguments, like Orbax's `args`."""
        for given in (item, save_args):
            if isinstance(given, self._save_args):
                return cast(SaveT, given)
        options = {} if save_args is None else {"save_args": save_args}
        return cast(Callable[..., SaveT], self._save_args)(item, **options)

    @override
    @abstractmethod
    async def stage(self, directory: Path, args: SaveT, *, copy: bool) -> Commit: ...

    @override
    @abstractmethod
    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any: ...

    @override
    def finalize(self, directory: PathLike) -> None:
        """Do nothing: `save` has finished its directory."""

    @override
    def close(self) -> None:
        """Release resources; the base has none."""


def _save_through_override(
    handler: ItemHandler[Any], path: Path, args: object, around: _Parts | None
) -> None:
    parts = around or _Parts(path, copy=False)

    async def save_and_wait() -> None:
        with parts.collected(handler, "async_save"):
            futures = _begin(await handler.async_save(foreign_path(handler, path), args=args))
        await parts.run()
        for future in futures:
            await asyncio.to_thread(future.result)

    run_sync(save_and_wait())
    if around is None:
        parts.finalize()
        handler.finalize(path)


def restore_item(
    handler: CheckpointHandler, directory: Path, args: Mapping[str, object], *, item: str = ""
) -> object:
    """Read an item.

    Files that the handler reads itself are first checked against the checkpoint's manifest, since
    nothing else would detect damage to them.

    Args:
        handler: The item's handler.
        directory: A checkpoint.
        args: Arguments of the handler's `restore`.
        item: Name of the item in the checkpoint; empty for the whole checkpoint.

    Raises:
        CorruptionError: A file differs from what was written.
    """
    path = inner_file(directory, item) if item else directory
    is_ours = isinstance(handler, StagingHandler)
    if not is_ours or is_overridden(handler, "restore", since="stage"):
        open_checked(directory).verify_below(f"{item}/" if item else "")
        path = foreign_path(handler, path)
    positional, named = _unpack(args)
    restore: Callable[..., object] = handler.restore
    return restore(path, *positional, **named)
