"""Plug-ins: found by entry point, imported only when something asks for them."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

_logger = logging.getLogger(__name__)

TYPE_HANDLERS = "orbit_ckpt.type_handlers"
ITEMS = "orbit_ckpt.items"
FORMATS = "orbit_ckpt.formats"


def load_plugins(group: str, prepare: Callable[[object], T]) -> Iterator[tuple[str, T]]:
    """Yield the plug-ins of a group by name; one that cannot be used is skipped.

    A failure is logged as a warning with the plug-in's name: a broken package must not keep
    others from being used.

    Args:
        group: Entry point group.
        prepare: Turns what the entry point refers to into what is wanted; may raise.
    """
    for entry in importlib.metadata.entry_points(group=group):
        try:
            plugin = prepare(entry.load())
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            _logger.warning("Plug-in %r of group %s cannot be used: %s", entry.name, group, error)
        else:
            yield entry.name, plugin
