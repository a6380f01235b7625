"""Orbax's interface of item handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from orbit_ckpt._src.runtime.checks import is_overridden, show
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.futures import Future
from orbit_ckpt._src.storage.layout import TEMPORARY_SUFFIX
from orbit_ckpt._src.text import warn_set

ORBAX_PREFIX = "orbax.checkpoint._src.handlers."
"""Prefix of the names of Orbax's handlers; checkpoints hold it so that Orbax can restore them."""

_WHY = {
    "composite_options": "the checkpointer or manager decides; give it the options",
    "multiprocessing_options": (
        "the checkpointer or manager decides which processes save; give it to that"
    ),
    "enable_pinned_host_transfer": "JAX chooses the memory through which arrays are copied",
}


@runtime_checkable
class CheckpointHandler(Protocol):
    """Saves and restores one item in its own directory.

    A handler alone is not atomic; use it through a `Checkpointer`. Each handler defines the
    arguments that `save` and `restore` take besides the directory.
    """

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write the item into an existing empty directory."""
        ...

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> object:
        """Read the item."""
        ...

    def metadata(self, directory: Any) -> Any:  # noqa: ARG002 - for subclasses
        """Return metadata of the item without reading its data; the base has none."""
        return None

    def finalize(self, directory: Any) -> None:
        """Finish the directory after everything is written, before the commit."""

    def close(self) -> None:
        """Release resources."""

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record for the handler."""
        return f"{cls.__module__}.{cls.__qualname__}"


@runtime_checkable
class AsyncCheckpointHandler(CheckpointHandler, Protocol):
    """An item handler whose saves continue in the background, in Orbax's way."""

    async def async_save(
        self, directory: Any, *args: Any, **kwargs: Any
    ) -> Sequence[Future] | None:
        """Copy what the caller may change; return futures of the write into the directory."""
        ...


@runtime_checkable
class StagingHandler(Protocol):
    """An item handler that saves in two phases."""

    async def stage(self, directory: Path, args: Any, *, copy: bool) -> Commit:
        """Copy an item and return the commit that writes it.

        Args:
            directory: Where to write the item; may not exist yet.
            args: What to save.
            copy: Whether the caller may change the item before the commit has run.
        """
        ...


def item_name(directory: Path) -> str:
    """Return the item's name for messages, from the directory it will be written to."""
    return directory.name.partition(TEMPORARY_SUFFIX)[0]


def name_of(kind: type) -> str:
    """Return the qualified name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def check_handler(name: str, handler: object) -> None:
    """Check that a value is an item handler.

    Args:
        name: Its name in messages.
        handler: The value.

    Raises:
        TypeError: It is something else, such as a handler class.
    """
    if isinstance(handler, type):
        raise TypeError(
            f"{name} must be an item handler, found {show(handler)}. Give an object of "
            "it, made by calling it."
        )
    if not (hasattr(handler, "save") and hasattr(handler, "restore")):
        raise TypeError(
            f"{name} must be an item handler, with save and restore, found {show(handler)}. Give "
            "PyTreeCheckpointHandler() or StandardCheckpointHandler(), for example."
        )


def typestr_of(handler: object) -> str:
    """Return the name that a checkpoint records for a handler or handler class.

    A subclass with its own way to read is recorded by its own name: the base class from which it
    inherits the name could not restore its checkpoints.
    """
    kind = handler if isinstance(handler, type) else type(handler)
    typestr: Callable[[], str] | None = getattr(kind, "typestr", None)
    if typestr is None or is_overridden(kind, "restore", since="typestr"):
        return name_of(kind)
    return typestr()


def warn_of_unused(handler: object, **given: object) -> None:
    """Warn of constructor options that are set but have no effect.

    Args:
        handler: The handler under construction.
        **given: Option values by name.
    """
    options = {name: (value, _default(value), _WHY[name]) for name, value in given.items()}
    warn_set(type(handler).__qualname__, options)


def _default(value: object) -> object:
    """Return the value of an option that stands for "not set"."""
    if is_dataclass(value):
        return type(value)()
    return False if isinstance(value, bool) else None
