"""Item handlers that are registered with Orbax itself, such as grain's.

This module never imports Orbax: such handlers exist only in a program that has imported it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.path import as_epath


def is_foreign_args(value: object) -> bool:
    """Return whether a value is an argument object of Orbax."""
    orbax = _orbax_args()
    return orbax is not None and isinstance(value, orbax.CheckpointArgs)


def is_foreign_args_class(kind: type) -> bool:
    """Return whether a class is an argument class of Orbax."""
    orbax = _orbax_args()
    return orbax is not None and issubclass(kind, orbax.CheckpointArgs)


def foreign_handler_class(args: object) -> type | None:
    """Return the handler class with which Orbax registers an argument object or class."""
    orbax = _orbax_args()
    kind = args if isinstance(args, type) else type(args)
    if orbax is None or not issubclass(kind, orbax.CheckpointArgs):
        return None
    try:
        return orbax.get_registered_handler_cls(kind)
    except ValueError:
        return None


def foreign_args(handler_cls: type) -> tuple[type, type] | None:
    """Return the argument classes, for save and restore, that Orbax registers for a handler."""
    orbax = _orbax_args()
    if orbax is None:
        return None
    try:
        return orbax.get_registered_args_cls(handler_cls)
    except ValueError:
        return None


def foreign_path(handler: object, directory: Path) -> Path:
    """Convert a path to the type a handler expects: handlers for Orbax use etils' methods."""
    if directory_of(directory).has_local_files or foreign_args(type(handler)) is not None:
        return as_epath(directory)
    return directory


def _orbax_args() -> Any | None:  # a module
    args = sys.modules.get("orbax.checkpoint.args")
    is_orbax = args is not None and args.__name__ == "orbax.checkpoint.args"
    return args if is_orbax else None  # this library, if it is installed as Orbax
