"""Item handlers whose arguments are registered with Orbax itself, such as grain's.

Orbax is never imported here. Only a program that has imported it can have such arguments.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from orbit_ckpt._src.storage.path import as_epath
from orbit_ckpt._src.storage.store_path import StorePath


def is_foreign_args(value: object) -> bool:
    """Whether a value is an argument object of Orbax's."""
    orbax = _orbax_args()
    return orbax is not None and isinstance(value, orbax.CheckpointArgs)


def is_foreign_args_class(kind: type) -> bool:
    """Whether a class is one of Orbax's argument objects."""
    orbax = _orbax_args()
    return orbax is not None and issubclass(kind, orbax.CheckpointArgs)


def foreign_handler_class(args: object) -> type | None:
    """Return the handler class that an args object or class is registered with at Orbax."""
    orbax = _orbax_args()
    kind = args if isinstance(args, type) else type(args)
    if orbax is None or not issubclass(kind, orbax.CheckpointArgs):
        return None
    try:
        return orbax.get_registered_handler_cls(kind)
    except ValueError:
        return None


def foreign_args(handler_cls: type) -> tuple[type, type] | None:
    """Return the argument classes of a handler for save and restore that Orbax knows."""
    orbax = _orbax_args()
    if orbax is None:
        return None
    try:
        return orbax.get_registered_args_cls(handler_cls)
    except ValueError:
        return None


def foreign_path(handler: object, directory: Path) -> Path:
    """Return a path as a handler expects it: those written for Orbax use etils' methods."""
    if isinstance(directory, StorePath) and foreign_args(type(handler)) is None:
        return directory
    return as_epath(directory)


def _orbax_args() -> Any | None:  # a module
    return sys.modules.get("orbax.checkpoint.args")
