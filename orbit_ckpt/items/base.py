"""The interface of item handlers, and how their arguments are registered; Orbax's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from orbit_ckpt.items.foreign import (
    foreign_args,
    foreign_handler_class,
    foreign_path,
    is_foreign_args,
)
from orbit_ckpt.runtime.commit import Commit
from orbit_ckpt.runtime.loop import run_sync
from orbit_ckpt.storage.atomic import sync_files
from orbit_ckpt.storage.inner_path import inner_file
from orbit_ckpt.storage.integrity import CheckedDirectory
from orbit_ckpt.storage.layout import TEMPORARY_SUFFIX

ORBAX_PREFIX = "orbax.checkpoint._src.handlers."
"""What Orbax finds its handlers by; written into checkpoints so that it can restore them."""


class CheckpointArgs:
    """Base of the argument classes of item handlers."""


ArgsT = TypeVar("ArgsT", bound=CheckpointArgs)


@runtime_checkable
class CheckpointHandler(Protocol):
    """Saves and restores one item in a directory of its own.

    By itself a handler is not atomic; use it through a `Checkpointer`. What `save` and `restore`
    take besides the directory is each handler's own affair.
    """

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write the item into an existing empty directory."""
        ...

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> object:
        """Read the item."""
        ...

    def finalize(self, directory: Any) -> None:
        """Do what must be done once everything is written, before the commit."""
        ...

    def close(self) -> None:
        """Give up resources."""
        ...


@runtime_checkable
class StagingHandler(Protocol):
    """An item handler that saves in two phases."""

    async def stage(self, directory: Path, args: Any, *, copy: bool) -> Commit:
        """Take an item from the caller and return what remains to be done.

        Args:
            directory: Where the item will be written; may not exist yet.
            args: What to save.
            copy: Whether the caller may change the item before the commit has run.
        """
        ...


async def stage_item(
    handler: CheckpointHandler, directory: Path, args: Mapping[str, object], *, copy: bool
) -> Commit:
    """Take an item from the caller; a handler that cannot do so saves it at once.

    Handlers written for Orbax may have a coroutine `async_save` that returns futures.
    """
    if isinstance(handler, StagingHandler):
        return await handler.stage(directory, args["args"], copy=copy)
    await asyncio.to_thread(directory.mkdir, exist_ok=True)
    directory = foreign_path(handler, directory)
    save_async = cast(
        Callable[..., Awaitable[Sequence[Future[Any]] | None]] | None,
        getattr(handler, "async_save", None),
    )
    futures: Sequence[Future[Any]] = ()
    if save_async is not None:
        futures = await save_async(directory, **args) or ()
    else:
        handler.save(directory, **args)

    async def write() -> None:
        for future in futures:
            await asyncio.to_thread(future.result)

    def finalize() -> None:
        handler.finalize(directory)
        sync_files(Path(directory))  # who knows whether it has

    return Commit(write, finalize)


def restore_item(
    handler: CheckpointHandler, directory: Path, args: Mapping[str, object], *, item: str = ""
) -> object:
    """Read an item.

    The files of a handler that does not save in two phases are compared with the checkpoint's
    manifest first: nothing else would notice damage to them.

    Args:
        handler: What reads it.
        directory: A checkpoint.
        args: Arguments of the handler's `restore`.
        item: Name of the item in the checkpoint; empty if it is all of it.

    Raises:
        CorruptionError: A file differs from what was written.
    """
    path = inner_file(directory, item) if item else directory
    if not isinstance(handler, StagingHandler):
        CheckedDirectory(directory).verify_below(f"{item}/" if item else "")
        path = foreign_path(handler, path)
    return handler.restore(path, **args)


def item_name(directory: Path) -> str:
    """Return what to call an item in messages, from where it will be written."""
    return directory.name.partition(TEMPORARY_SUFFIX)[0]


def run_both_phases(staged: Coroutine[object, object, Commit]) -> None:
    """Run both phases of the save of an item, and finish its directory."""

    async def both_phases() -> Commit:
        commit = await staged
        await commit.run()
        return commit

    run_sync(both_phases()).finalize()


_SAVE, _RESTORE, _HANDLER = "_orbit_save_args", "_orbit_restore_args", "_orbit_handler"


def register_with_handler(
    handler_cls: type,
    for_save: bool = False,
    for_restore: bool = False,
) -> Callable[[type[ArgsT]], type[ArgsT]]:
    """Return a class decorator that makes an argument class belong to a handler class.

    Raises:
        ValueError: Neither `for_save` nor `for_restore` is set.
    """
    if not for_save and not for_restore:
        raise ValueError("Set for_save or for_restore: the arguments must be for something.")

    def register(args_cls: type[ArgsT]) -> type[ArgsT]:
        if for_save:
            setattr(handler_cls, _SAVE, args_cls)
        if for_restore:
            setattr(handler_cls, _RESTORE, args_cls)
        setattr(args_cls, _HANDLER, handler_cls)
        _remember(handler_cls)
        return args_cls

    return register


def _remember(kind: type) -> None:
    """Find a handler class by its typestr from now on, unless that of another one is the same."""
    known = _known_handlers.setdefault(typestr_of(kind), kind)
    if (known.__module__, known.__qualname__) == (kind.__module__, kind.__qualname__):
        _known_handlers[typestr_of(kind)] = kind  # defined again, in a notebook


_known_handlers: dict[str, type] = {}
"""Handler classes by typestr: those that have been imported, wherever they are from."""


def known_handlers() -> Mapping[str, type[CheckpointHandler]]:
    """Return the item handlers that have been imported, by typestr."""
    return cast(Mapping[str, type[CheckpointHandler]], _known_handlers)


def registered_args(handler_cls: type) -> tuple[type[CheckpointArgs], type[CheckpointArgs]] | None:
    """Return the argument classes of a handler for save and restore, None if it has none.

    They are registered here, or with Orbax if that has been imported.
    """
    save = cast(type[CheckpointArgs] | None, getattr(handler_cls, _SAVE, None))
    restore = cast(type[CheckpointArgs] | None, getattr(handler_cls, _RESTORE, None))
    return foreign_args(handler_cls) if save is None or restore is None else (save, restore)


def is_args(value: object) -> bool:
    """Whether a value is an argument object, ours or Orbax's."""
    return isinstance(value, CheckpointArgs) or is_foreign_args(value)


def handler_class_of(args: object) -> type[CheckpointHandler]:
    """Return the handler class that an args object or class belongs to, here or at Orbax.

    Raises:
        ValueError: It belongs to none.
    """
    found = getattr(args, _HANDLER, None) or foreign_handler_class(args)
    if found is None:
        name = args.__qualname__ if isinstance(args, type) else type(args).__qualname__
        raise ValueError(
            f"{name} belongs to no item handler; decorate it with register_with_handler."
        )
    return cast(type[CheckpointHandler], found)


def typestr_of(handler: object) -> str:
    """Return the name under which a checkpoint records a handler, or a handler class."""
    kind = handler if isinstance(handler, type) else type(handler)
    typestr = cast(Callable[[], str] | None, getattr(kind, "typestr", None))
    return typestr() if typestr is not None else f"{kind.__module__}.{kind.__qualname__}"
