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
    """Yield the plug-ins of a group, each with what messages call it; skip what cannot be used.

    A failure is logged as a warning that names the plug-in and its package: a broken package must
    not keep others from being used.

    Args:
        group: Entry point group.
        prepare: Turns what the entry point refers to into what is wanted; may raise.
    """
    for entry in importlib.metadata.entry_points(group=group):
        try:
            plugin = prepare(entry.load())
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            warn_of(_title(entry), error)
        else:
            yield _title(entry), plugin


def warn_of(title: str, error: Exception) -> None:
    """Log that a plug-in has failed, and is passed over."""
    _logger.warning("%s cannot be used: %s: %s", title, type(error).__name__, error)


def _title(entry: importlib.metadata.EntryPoint) -> str:
    package = f", package {entry.dist.name}" if entry.dist is not None else ""
    return f"Plug-in {entry.name!r} of group {entry.group}{package}"
