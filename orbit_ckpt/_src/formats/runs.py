"""Scan the directory of a run: its checkpoints, by any program, and its unfinished saves."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from msgspec import Struct, structs

from orbit_ckpt._src.formats.base import (
    ForeignStep,
    Format,
    StepRecognizer,
    built_in_format,
    built_in_formats,
)
from orbit_ckpt._src.formats.orbax.layout import holds_tree
from orbit_ckpt._src.storage.atomic import is_in_progress, looks_like_checkpoint
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.directory import Directory
from orbit_ckpt._src.storage.layout import (
    AGGREGATE,
    COMMIT_MARKER,
    IN_PROGRESS,
    RUN_METADATA,
    STEP_METADATA,
    TREE_METADATA,
    is_temporary_name,
    number_in,
)
from orbit_ckpt._src.storage.store_path import map_paths
from orbit_ckpt._src.storage.system import is_directory

_FOREIGN_FILES = frozenset({RUN_METADATA, AGGREGATE})
_FLAX_PREFIX = "checkpoint_"
"""A step of another program has one of these files or this prefix; checked before any import."""

_FOREIGN_TEMPORARY = re.compile(r"checkpoint_\d+\.tmp-\d+|checkpoint_tmp|checkpoint_[\d.]+tmp")
"""What T5X and Flax call a save in progress."""

_logger = logging.getLogger(__name__)


class RunStep(Struct, frozen=True):
    """One finished checkpoint of a run.

    Attributes:
        path: Its path.
        step: Its number; None without one. Flax allows fractions.
        reader: The format it is read as; None for our own and Orbax's.
        foreign: Another program's records of it.
        entries: Entries of its directory; empty for a file, and in a store.
        is_bare: Whether only arrays show that it is a tree, as in Orbax's first releases.
        place: `path` as text if it is local: to make it of a `Path` takes as long as to read a
            document, and a run may have 20,000 steps. Else empty.
    """

    path: Path
    step: float | None
    reader: Format | None = None
    foreign: ForeignStep | None = None
    entries: Sequence[os.DirEntry[str]] = ()
    is_bare: bool = False
    place: str = ""


class Run(Struct, frozen=True):
    """The contents of a run's directory.

    Attributes:
        steps: Its finished checkpoints, ascending; those without a number first. Of two with one
            number our own or Orbax's is the last.
        unfinished: Names of saves in progress and of those that dead processes left.
    """

    steps: Sequence[RunStep] = ()
    unfinished: Sequence[str] = ()

    @property
    def is_mixed(self) -> bool:
        """Whether several programs wrote into it."""
        return len({step.reader and step.reader.name for step in self.steps}) > 1

    @property
    def newest(self) -> RunStep | None:
        """The step with the highest number, None if there is no step."""
        numbered = [step for step in self.steps if step.step is not None]
        return numbered[-1] if numbered else None

    def warn_of_duplicates(self) -> None:
        """Log which of two checkpoints with the newest number is used."""
        newest = self.newest
        for other in self.steps[:-1]:
            if newest is not None and other.step == newest.step and other is not newest:
                _logger.warning(
                    "Step %s exists twice: %s is used, %s is not",
                    *(newest.step, newest.path, other.path),
                )


def locate_run(root: Path) -> Run:
    """Return the checkpoints in a directory, by any program; none if it is one checkpoint itself.

    Scans every directory in it once.

    Raises:
        OSError: The directory cannot be read.
    """
    directory = directory_of(root)
    if directory.has_markers:
        return _locate_marked(directory)
    if not root.is_dir() or is_one_checkpoint(root):
        return Run()
    steps: list[RunStep] = []
    unfinished: list[str] = []
    with os.scandir(root) as scanned:
        children = sorted(scanned, key=lambda entry: entry.name)
    for child in children:
        entries = None if is_unfinished(child.name) else _scan(child)
        if entries is None or _is_begun(entries):
            unfinished.append(child.name)
        elif (step := locate_step(child.path, entries)) is not None:
            steps.append(step)
    if len(steps) == 1 and steps[0].path.is_file():
        steps = []  # the directory of a single file is that checkpoint
    return Run(sorted(steps, key=_order), unfinished)  # those of one number stay sorted by name


def locate_step(place: str, entries: Sequence[os.DirEntry[str]]) -> RunStep | None:
    """Return the checkpoint at a local path, None if there is none that is complete.

    Args:
        place: The path of a file or directory.
        entries: What the directory holds.
    """
    path = Path(place)
    names = {entry.name for entry in entries}
    if IN_PROGRESS in names:
        return None
    if STEP_METADATA not in names and (not entries or not _FOREIGN_FILES.isdisjoint(names)):
        found = foreign_step(path)
        if found is not None:
            return structs.replace(found, entries=entries, place=place)
    is_complete = STEP_METADATA in names or looks_like_checkpoint(path, entries)
    if not is_complete and not (entries and _is_old_tree(path)):
        return None
    step = number_in(os.path.basename(place))
    return RunStep(path, step, entries=entries, is_bare=not is_complete, place=place)


def scan_step(path: Path | str) -> RunStep | None:
    """Scan a local path; return the complete checkpoint there, None if there is none.

    Raises:
        OSError: It cannot be read, or does not exist.
    """
    place, entries = os.fspath(path), ()
    with contextlib.suppress(NotADirectoryError), os.scandir(place) as scanned:
        entries = tuple(scanned)
    return locate_step(place, entries)


def foreign_step(path: Path) -> RunStep | None:
    """Return the checkpoint that another program finished at a path, None if there is none."""
    if not _has_foreign_sign(path):
        return None
    for known in built_in_formats(has_runs=True):
        found = known.step_at(path) if isinstance(known, StepRecognizer) else None
        if found is not None:
            # eFormer records -1 if it was not given a step
            step = number_in(path.name) if found.step < 0 else found.step
            return RunStep(path, step, known, found)
    return None


def _has_foreign_sign(path: Path) -> bool:
    """Return whether a path may be another program's step; imports no format for most paths."""
    if not directory_of(path).has_local_files:
        has = map_paths(
            lambda file: file.is_file(), [path / name for name in _FOREIGN_FILES], root=path
        )
        return any(has) or path.name.startswith(_FLAX_PREFIX)
    if os.path.isdir(path):
        return any(os.path.isfile(os.path.join(path, name)) for name in _FOREIGN_FILES)
    return path.name.startswith(_FLAX_PREFIX)


def is_one_checkpoint(root: Path) -> bool:
    """Return whether a local directory is a checkpoint, so that what is in it are no steps."""
    own = any((root / name).exists() for name in (STEP_METADATA, TREE_METADATA, COMMIT_MARKER))
    return own or holds_tree(root) or foreign_step(root) is not None


def series_of(path: Path) -> str:
    """Return the name of a step without its number; the steps of a run share it."""
    return path.name.rstrip("0123456789.")


def _scan(child: os.DirEntry[str]) -> Sequence[os.DirEntry[str]]:
    """Return the entries of a directory; none for a file, or if it no longer exists."""
    if not is_directory(child):
        return ()
    try:
        with os.scandir(child.path) as entries:
            return tuple(entries)
    except FileNotFoundError:
        return ()


def _is_begun(entries: Sequence[os.DirEntry[str]]) -> bool:
    """Return whether a local directory is an unfinished save in marker mode."""
    return IN_PROGRESS in [entry.name for entry in entries]


def _is_old_tree(directory: Path) -> bool:
    """Return whether only arrays mark a directory as a tree, as in Orbax's first releases.

    Such are also the saves of eFormer and Levanter that did not finish.
    """
    others = map(built_in_format, ("eformer", "levanter"))
    return holds_tree(directory) and all(known.sniff(directory) is not None for known in others)


def _locate_marked(directory: Directory) -> Run:
    """Return the checkpoints in a directory in which markers show the complete ones."""
    if directory.is_committed() or foreign_step(directory.path) is not None:
        return Run()
    root, entries = directory.path, directory.entries()
    below = [directory_of(root / entry.name) for entry in entries if entry.is_dir()]
    committed = map_paths(lambda one: one.is_committed(), below, root=root)
    own = [one.path for one, is_own in zip(below, committed, strict=True) if is_own]
    others = [one.path for one, is_own in zip(below, committed, strict=True) if not is_own]
    begun = map_paths(is_in_progress, others, root=root)
    unfinished = [at.name for at, is_begun in zip(others, begun, strict=True) if is_begun]
    steps = [RunStep(at, number_in(at.name)) for at in sorted(own)]
    foreign = map_paths(foreign_step, others, root=root)
    steps += [step for step in foreign if step is not None]
    flax = built_in_format("flax_msgpack")
    files = [root / entry.name for entry in entries if not entry.is_dir()]
    found = [(at, cast(StepRecognizer, flax).step_at(at)) for at in sorted(files)]
    steps += [RunStep(at, step.step, flax, step) for at, step in found if step is not None]
    if len(steps) == 1 and steps[0].path.name in {at.name for at in files}:
        steps = []  # the directory of a single file is that checkpoint
    return Run(sorted(steps, key=_order), sorted(unfinished))


def _order(step: RunStep) -> tuple[float, bool]:
    return -1 if step.step is None else step.step, step.reader is None


def is_unfinished(name: str) -> bool:
    """Return whether our own, Orbax's, T5X's and Flax's saves in progress have such names."""
    return is_temporary_name(name) or _FOREIGN_TEMPORARY.fullmatch(name) is not None
