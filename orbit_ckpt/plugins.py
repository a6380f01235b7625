"""Plug-ins: found by entry point, imported only when something asks for them."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterator

_logger = logging.getLogger(__name__)

TYPE_HANDLERS = "orbit_ckpt.type_handlers"
ITEMS = "orbit_ckpt.items"
FORMATS = "orbit_ckpt.formats"


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names registered in a group, without importing anything."""
    return tuple(sorted({entry.name for entry in importlib.metadata.entry_points(group=group)}))


def load_plugins(group: str, name: str | None = None) -> Iterator[tuple[str, object]]:
    """Yield the plug-ins of a group, or the one of a name; one that fails to import is skipped.

    A failure is logged as a warning with the plug-in's name: a broken package must not keep
    others from being used.
    """
    for entry in importlib.metadata.entry_points(group=group):
        if name is not None and entry.name != name:
            continue
        try:
            yield entry.name, entry.load()
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            _logger.warning("Plug-in %r of group %s cannot be used: %s", entry.name, group, error)
