"""Plug-ins: found by entry point, imported only when needed."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Plugin(NamedTuple, Generic[T]):
    """An installed plug-in.

    Attributes:
        entry: Its entry point.
        loaded: The object it provides, None if unusable.
        error: Why it is unusable, None if it is usable.
    """

    entry: importlib.metadata.EntryPoint
    loaded: T | None
    error: Exception | None

    @property
    def title(self) -> str:
        """Its name in messages."""
        entry = self.entry
        package = f", package {entry.dist.name}" if entry.dist is not None else ""
        return f"Plug-in {entry.name!r} of group {entry.group}{package}"

    def warn(self, error: Exception) -> None:
        """Log that it has failed and is skipped."""
        _logger.warning("%s cannot be used: %s: %s", self.title, type(error).__name__, error)


class PluginRegistry(Generic[T]):
    """The plug-ins of one entry point group."""

    def __init__(self, group: str, prepare: Callable[[object], T]) -> None:
        """Make a registry; nothing is looked up or imported yet.

        Args:
            group: The group.
            prepare: Converts the object of an entry point to what the group provides; raises for
                any other object.
        """
        self.group = group
        self._prepare = prepare

    def all(self, name: str | None = None) -> Iterator[Plugin[T]]:
        """Yield the plug-ins, imported and checked; unusable ones carry their error.

        Args:
            name: Name of the entry points, None for all.
        """
        installed = importlib.metadata.entry_points(group=self.group)
        for entry in installed if name is None else installed.select(name=name):
            try:
                found = Plugin(entry, self._prepare(entry.load()), None)
            except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
                found = Plugin[T](entry, None, error)
            yield found

    def usable(self, name: str | None = None) -> Iterator[tuple[Plugin[T], T]]:
        """Yield the usable plug-ins and what they provide.

        The others are logged as warnings that name the plug-in and its package: one broken package
        must not disable the others.
        """
        for plugin in self.all(name):
            if plugin.error is None:
                yield plugin, cast(T, plugin.loaded)
            else:
                plugin.warn(plugin.error)
