"""Plug-ins: found by entry point, imported only when something asks for them."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")

_logger = logging.getLogger(__name__)

TYPE_HANDLERS = "orbit_ckpt.type_handlers"
ITEMS = "orbit_ckpt.items"
FORMATS = "orbit_ckpt.formats"


class Plugin(NamedTuple, Generic[T]):
    """A plug-in that is installed.

    Attributes:
        entry: Its entry point.
        loaded: What it provides, None if it cannot be used.
        error: Why it cannot be used, None if it can.
    """

    entry: importlib.metadata.EntryPoint
    loaded: T | None
    error: Exception | None

    @property
    def title(self) -> str:
        """What messages call it."""
        entry = self.entry
        package = f", package {entry.dist.name}" if entry.dist is not None else ""
        return f"Plug-in {entry.name!r} of group {entry.group}{package}"


def find_plugins(
    group: str, prepare: Callable[[object], T], *, name: str | None = None
) -> Iterator[Plugin[T]]:
    """Yield the plug-ins of a group, imported and checked; those that cannot be used say why.

    Args:
        group: Entry point group.
        prepare: Turns what an entry point refers to into what is wanted; raises if it is not that.
        name: Name of the entry points, None for all.
    """
    installed = importlib.metadata.entry_points(group=group)
    for entry in installed if name is None else installed.select(name=name):
        try:
            found = Plugin(entry, prepare(entry.load()), None)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            found = Plugin[T](entry, None, error)
        yield found


def load_plugins(
    group: str, prepare: Callable[[object], T], *, name: str | None = None
) -> Iterator[tuple[str, T]]:
    """Yield the plug-ins of a group that can be used, each with what messages call it.

    For the others a warning is logged that names the plug-in and its package: a broken package must
    not keep others from being used. For the arguments see `find_plugins`.
    """
    for plugin in find_plugins(group, prepare, name=name):
        if plugin.error is not None:
            warn_of(plugin.title, plugin.error)
        else:
            yield plugin.title, cast(T, plugin.loaded)


def warn_of(title: str, error: Exception) -> None:
    """Log that a plug-in has failed, and is passed over."""
    _logger.warning("%s cannot be used: %s: %s", title, type(error).__name__, error)
