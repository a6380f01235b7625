"""Saves that have not ended, and how checkpoints become visible, under Orbax's names."""

from __future__ import annotations

from collections.abc import Mapping

from orbit_ckpt._src.checkpointer.options import AtomicityOptions
from orbit_ckpt._src.checkpointer.temporary_path import (
    AtomicRenameTemporaryPath,
    CommitFileTemporaryPath,
    TemporaryPath,
)
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, is_temporary_name
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.text import warn_set

_MODES: Mapping[type, AtomicityMode] = {
    kind: kind.mode for kind in (AtomicRenameTemporaryPath, CommitFileTemporaryPath)
}


def get_default_temporary_path_class(
    path: PathLike, *, atomicity_options: AtomicityOptions | None = None
) -> type[AtomicRenameTemporaryPath | CommitFileTemporaryPath]:
    """Return the class that stands for the way in which a checkpoint at a path becomes visible.

    Args:
        path: The checkpoint.
        atomicity_options: Options of its checkpointer.
    """
    mode = (atomicity_options or AtomicityOptions()).mode
    if mode is AtomicityMode.AUTO:
        has_rename = directory_of(resolve_path(path)).has_rename
        mode = AtomicityMode.ATOMIC_RENAME if has_rename else AtomicityMode.COMMIT_FILE
    in_place = mode is AtomicityMode.COMMIT_FILE
    return CommitFileTemporaryPath if in_place else AtomicRenameTemporaryPath


def atomicity_of(
    temporary_path_class: object,
    options: AtomicityOptions | None,
    *,
    owner: str,
    name: str = "temporary_path_class",
) -> AtomicityOptions | None:
    """Combine Orbax's two ways to choose how a checkpoint becomes visible.

    Args:
        temporary_path_class: A class of temporary paths; a class from elsewhere has no effect
            except a warning.
        options: The other way.
        owner: The object or function that received them.
        name: Name of the argument with the class.

    Raises:
        ValueError: They contradict each other.
    """
    kind = temporary_path_class
    mode = _MODES.get(kind) if isinstance(kind, type) else None
    if mode is None:
        why = "atomicity_options say how a checkpoint becomes visible"
        warn_set(owner, {name: (kind, None, why)})
        return options
    if options is not None and options.mode not in (mode, AtomicityMode.AUTO):
        raise ValueError(
            f"{name}={show(kind)} contradicts atomicity_options, whose mode is {options.mode}. "
            "Give one of the two."
        )
    allows_unmarked = options is not None and options.allow_legacy_atomic_rename
    return AtomicityOptions(mode, allows_unmarked)


def is_path_temporary(
    path: PathLike,
    *,
    temporary_path_cls: object = None,
    atomicity_options: AtomicityOptions | None = None,
) -> bool:
    """Return whether a path is a save that has not ended.

    Args:
        path: A directory.
        temporary_path_cls: How saves become visible there, as an alternative to the next one.
        atomicity_options: In marker mode, every directory without a marker is unfinished.
    """
    place = directory_of(resolve_path(path))
    if place.path.is_symlink() or not place.path.is_dir():
        return False
    options = options_of("is_path_temporary", temporary_path_cls, atomicity_options)
    is_unmarked = options.needs_marker and not (place.path / COMMIT_MARKER).exists()
    return is_unmarked or place.is_unfinished()


def all_temporary_paths(
    root_directory: PathLike,
    *,
    temporary_path_cls: object = None,
    atomicity_options: AtomicityOptions | None = None,
) -> list[TemporaryPath]:
    """Return the saves into a directory that have not ended; see `is_path_temporary`."""
    root = resolve_path(root_directory)
    if not root.is_dir():
        return []
    options = options_of("all_temporary_paths", temporary_path_cls, atomicity_options)
    directory = directory_of(root)
    found = (root / name for name in directory.subdirectories())
    return [
        (
            AtomicRenameTemporaryPath if is_temporary_name(path.name) else CommitFileTemporaryPath
        ).from_temporary(path)
        for path in found
        if is_path_temporary(path, atomicity_options=options)
    ]


def tmp_checkpoints(checkpoint_dir: PathLike) -> list[str]:
    """Return the names of the saves into a directory that have not ended."""
    return [path.get().name for path in all_temporary_paths(checkpoint_dir)]


def options_of(owner: str, kind: object, options: AtomicityOptions | None) -> AtomicityOptions:
    """Return the options that a function's two arguments choose; the defaults for None."""
    found = atomicity_of(kind, options, owner=owner, name="temporary_path_cls")
    return found or AtomicityOptions()
