"""Tell of which format a checkpoint is: our own and Orbax's first, then those of other programs."""

from __future__ import annotations

import os
from pathlib import Path

from orbit_ckpt._src.errors import CheckpointNotFoundError, StorageError
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.formats.locate import BUILT_IN, built_in_formats, locate_run
from orbit_ckpt._src.formats.orbax_layout import (
    check_complete,
    find_items,
    find_tree,
    holds_steps,
    is_tree,
)
from orbit_ckpt._src.plugins import PluginRegistry
from orbit_ckpt._src.storage.layout import STEP_METADATA
from orbit_ckpt._src.storage.other_files import recognize
from orbit_ckpt._src.storage.path import resolve_path, storage_errors
from orbit_ckpt._src.storage.store_path import StorePath

ORBAX = "orbax"
"""What `detect_format` calls Orbax's format, which is ours."""

IN_STORES = ("safetensors", "t5x", "flax_msgpack")
"""Those that are known in object stores too; T5X's are so that nothing else takes them for its own,
and are refused.
"""


def detect_format(path: str | os.PathLike[str]) -> str:
    """Return of which format a checkpoint or a run is; reads names and first bytes only.

    A run that several programs wrote into is of the format of its newest step.

    Args:
        path: What `load` takes, or the directory of a run; in an object store too.

    Returns:
        `"orbax"` for Orbax's format and ours, `"t5x"`, `"tf_checkpoint"`, `"eformer"`,
        `"levanter"`, `"flax_msgpack"`, `"safetensors"`, or the name of a plug-in's format.

    Raises:
        CheckpointNotFoundError: It is of no known format; lists what each format lacks.
        IncompleteCheckpointError: It is a save that did not finish.
        StorageError: It cannot be read.

    Example:
        >>> orbit_ckpt.save("run/step_1", {"w": np.ones((2, 3))})
        >>> orbit_ckpt.detect_format("run/step_1")
        'orbax'
    """
    place = resolve_path(path)
    with storage_errors(place, "reading", "Check that it can be read."):
        run = locate_run(place)
        if run.is_mixed and run.newest is not None:  # that of the step that is the latest
            newest = run.newest.reader
            return ORBAX if newest is None else _format_name(newest)
        missing = None
        try:
            if is_tree(find_tree(place)):
                return ORBAX
        except CheckpointNotFoundError as error:
            missing = str(error)
            if _is_without_tree(place):
                return ORBAX
        found = find_format(place)
        if not isinstance(found, str):
            return _format_name(found)
        if missing is None:
            return ORBAX
        raise CheckpointNotFoundError(f"{missing}{found}")


def _is_without_tree(path: Path) -> bool:
    """Whether a directory is a run of Orbax's format, or a checkpoint of other items than trees."""
    places = [path, *(path / name for name in find_items(path))] if path.is_dir() else []
    return any((place / STEP_METADATA).is_file() for place in places)


def _format_name(known: Format) -> str:
    """Return the name of a format's module here, or what a plug-in calls it."""
    package, _, name = type(known).__module__.rpartition(".")
    return name if package == __name__.rpartition(".")[0] else known.name


def foreign_format(path: Path) -> Format | None:
    """Return the other program's format that a path is opened as; None for Orbax's, or none.

    A run that several programs wrote into has none.

    Raises:
        IncompleteCheckpointError: It is a save that did not finish.
        StorageError: It cannot be read.
    """
    try:
        if not isinstance(path, StorePath):
            check_complete(path)
            if holds_steps(path):  # `find_tree` looks at every step
                return None
        if is_tree(find_tree(path)):
            return None
    except CheckpointNotFoundError:
        if isinstance(path, StorePath) and holds_steps(path):
            return None
    if locate_run(path).is_mixed:
        return None
    found = find_format(path)
    return None if isinstance(found, str) else found


def find_format(path: Path) -> Format | str:
    """Return the other program's format of what is at a path, or what each one lacks, as text.

    Of what is known to be something else only plug-ins say what it lacks. A plug-in that fails to
    tell is passed over with a warning.

    Raises:
        StorageError: The path cannot be read.
    """
    if not (path.is_file() or path.is_dir()):  # a pipe would be read for ever
        return ""
    lacks: list[str] = []
    in_store = isinstance(path, StorePath)
    for known in built_in_formats(IN_STORES if in_store else BUILT_IN):
        try:
            problem = known.sniff(path)
        except OSError as error:
            raise StorageError(
                f"{path}: reading failed: {error}. Check that it can be read."
            ) from error
        if problem is None:
            return known
        lacks.append(_lack(known, problem))
    if recognize(path) is not None:  # what the formats lack would only hide what it is
        lacks = []
    for found, plugin in () if in_store else PLUGINS.usable():
        try:
            problem = plugin.sniff(path)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            found.warn(error)
            lacks.append(
                f"\n  {plugin.name}: {found.title} failed: {type(error).__name__}: {error}"
            )
            continue
        if problem is None:
            return plugin
        lacks.append(_lack(plugin, problem))
    if in_store and lacks:
        lacks.append(
            "\n  Others are read from a local file system only; copy the checkpoint there."
        )
    return "\nOther formats:" + "".join(lacks) if lacks else ""


def _lack(known: Format, problem: str) -> str:
    extra = f" (needs `pip install '{known.extra}'`)" if known.extra else ""
    return f"\n  {known.name}{extra}: {problem}"


def _prepare_plugin(plugin: object) -> Format:
    """Return the format that a plug-in provides.

    Raises:
        TypeError: It provides something else.
    """
    found: object = plugin() if isinstance(plugin, type) else plugin
    if not isinstance(found, Format):
        raise TypeError(f"{found!r} does not have the methods of a Format")
    return found


PLUGINS = PluginRegistry("orbit_ckpt.formats", _prepare_plugin)
"""Formats of installed packages."""
