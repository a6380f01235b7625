"""Plug-ins: found by entry point, imported only when needed."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from orbit_ckpt._src.errors import PluginConflictError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

T = TypeVar("T")

PREFERENCE = "ORBIT_CKPT_PREFER_PLUGINS"
"""Environment variable: comma-separated packages whose plug-ins take precedence."""

_logger = logging.getLogger(__name__)


class Plugin(NamedTuple, Generic[T]):
    """An installed plug-in.

    Attributes:
        entry: Its entry point.
        loaded: The object it provides, None if unusable.
        error: Why it is unusable, None if it is usable.
    """

    entry: EntryPoint
    loaded: T | None
    error: Exception | None

    @property
    def title(self) -> str:
        """Its name in messages."""
        entry = self.entry
        package = f", package {entry.dist.name}" if entry.dist is not None else ""
        return f"Plug-in {entry.name!r} of group {entry.group}{package}"

    def get(self) -> T:
        """Return the object it provides.

        Raises:
            Exception: The plug-in is unusable; this is its error.
        """
        if self.loaded is None:
            raise self.error or TypeError(f"{self.title} provides nothing")
        return self.loaded

    def warn(self, error: Exception) -> None:
        """Log that it has failed and is skipped."""
        _logger.warning("%s cannot be used: %s: %s", self.title, type(error).__name__, error)


def installed_plugins(group: str | None = None) -> EntryPoints:
    """Return the entry points of a group, of all if it is None; imports none.

    Every call looks through all installed packages.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - few commands look for plug-ins

    found = entry_points()
    return found if group is None else found.select(group=group)


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

    def names(self) -> list[str]:
        """Return the names of the entry points, sorted; imports none."""
        return sorted({entry.name for entry in installed_plugins(self.group)})

    def all(self, name: str | None = None) -> Iterator[Plugin[T]]:
        """Yield the plug-ins, imported and checked; unusable ones carry their error.

        Args:
            name: Name of the entry points, None for all.
        """
        installed = installed_plugins(self.group)
        for entry in installed if name is None else installed.select(name=name):
            try:
                found = Plugin(entry, self._prepare(entry.load()), None)
            except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
                found = Plugin[T](entry, None, error)
            yield found

    def usable(self, name: str | None = None) -> Iterator[Plugin[T]]:
        """Yield the usable plug-ins.

        The others are logged as warnings that name the plug-in and its package: one broken package
        must not disable the others.
        """
        for plugin in self.all(name):
            if plugin.error is None:
                yield plugin
            else:
                plugin.warn(plugin.error)

    def named(self, name: str) -> T | None:
        """Return what the entry point of a name provides, None without a usable one.

        Raises:
            PluginConflictError: Several packages have one, and none is preferred.
        """
        found = list(self.usable(name))
        return choose(found, f"the name {name!r}").get() if found else None


def choose(plugins: Sequence[Plugin[T]], claim: str) -> Plugin[T]:
    """Return the plug-in that gets what it claims; one is preferred if several claim it.

    Args:
        plugins: One or more usable plug-ins.
        claim: What they claim, for the message.

    Raises:
        PluginConflictError: There are several, and none is preferred.
    """
    if len(plugins) == 1:
        return plugins[0]
    for package in _preferred():
        for plugin in plugins:
            if plugin.entry.dist is not None and _normalized(plugin.entry.dist.name) == package:
                return plugin
    titles = "; ".join(sorted(plugin.title for plugin in plugins))
    raise PluginConflictError(
        f"{len(plugins)} plug-ins claim {claim}: {titles}. "
        f"Uninstall all but one, or set {PREFERENCE} to the package whose plug-in is to be used."
    )


def _preferred() -> list[str]:
    return [_normalized(name) for name in os.environ.get(PREFERENCE, "").split(",") if name.strip()]


def _normalized(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package.strip()).lower()
