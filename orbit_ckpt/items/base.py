"""The interface of item handlers, and how their arguments are registered; Orbax's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

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


_SAVE, _RESTORE = "_orbit_save_args", "_orbit_restore_args"


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
        return args_cls

    return register


def registered_args(handler_cls: type) -> tuple[type[CheckpointArgs], type[CheckpointArgs]] | None:
    """Return the argument classes of a handler for save and restore, None if it has none."""
    save = cast(type[CheckpointArgs] | None, getattr(handler_cls, _SAVE, None))
    restore = cast(type[CheckpointArgs] | None, getattr(handler_cls, _RESTORE, None))
    return None if save is None or restore is None else (save, restore)


def typestr_of(handler: object) -> str:
    """Return the name under which a checkpoint records a handler."""
    typestr = cast(Callable[[], str] | None, getattr(type(handler), "typestr", None))
    if typestr is not None:
        return typestr()
    return f"{type(handler).__module__}.{type(handler).__qualname__}"
