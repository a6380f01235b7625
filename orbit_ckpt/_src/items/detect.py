"""Find the handler that wrote an item: from its record, or in older checkpoints from its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.formats.orbax_layout import holds_tree
from orbit_ckpt._src.items.base import CheckpointHandler
from orbit_ckpt._src.items.json import JsonHandler
from orbit_ckpt._src.items.pytree import PyTreeHandler
from orbit_ckpt._src.items.registry import JAX_RANDOM_KEY, NUMPY_RANDOM_KEY, find_handler_class
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, MANIFEST
from orbit_ckpt._src.storage.path import describe_directory

_RANDOM_KEYS = {"jax_random_key": JAX_RANDOM_KEY, "np_random_key": NUMPY_RANDOM_KEY}
_ORBAX = "orbax."
_V1_CLASSES: Mapping[str, type[CheckpointHandler]] = {
    "json_handler.JsonHandler": JsonHandler,
    "json_handler.MetricsHandler": JsonHandler,
    "pytree_handler.PyTreeHandler": PyTreeHandler,
}
"""Handlers that read what those of Orbax's v1 API wrote, by the ends of their typestrs."""


def handler_class_in(directory: Path, typestr: str | None) -> type[CheckpointHandler]:
    """Return the class of the handler that wrote an item.

    Orbax up to 0.11.0 does not record it, and its v1 API records its own classes; trees, random
    keys and JSON are then detected from the files.

    Args:
        directory: The item's directory.
        typestr: The recorded name, if any.

    Raises:
        ValueError: The handler is unknown and cannot be detected.
    """
    if typestr is not None:
        try:
            return find_handler_class(typestr)
        except ValueError:
            if not typestr.startswith(_ORBAX):
                raise
    found = _V1_CLASSES.get((typestr or "").rpartition("handlers.")[2]) or _infer(directory)
    if found is None:
        name = directory.name
        raise ValueError(
            f"It is not known how item {name!r} was saved: {typestr or 'nothing'} is recorded, and "
            f"its files do not tell ({describe_directory(directory)}). Give arguments for it, for "
            f"example args.Composite({name}=args.StandardRestore())."
        )
    return found


def _infer(directory: Path) -> type[CheckpointHandler] | None:
    names = {entry.name for entry in directory.iterdir()} - {COMMIT_MARKER, MANIFEST}
    for key, typestr in _RANDOM_KEYS.items():
        if names == {key, f"{key}_metadata"}:
            return find_handler_class(typestr)
    if holds_tree(directory):
        return PyTreeHandler
    handler = JsonHandler()
    if names == {handler.file_in(directory)}:
        try:
            handler.restore(directory)
        except FormatError:
            return None
        return JsonHandler
    return None
