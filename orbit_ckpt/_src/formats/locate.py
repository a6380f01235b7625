"""Identify a path; loading, checking, copying, listing and deleting all ask here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from orbit_ckpt._src.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    IncompleteCheckpointError,
    UnsafePathError,
)
from orbit_ckpt._src.formats.base import Format, find_format, format_name
from orbit_ckpt._src.formats.orbax.layout import TreeSearch, explain_no_tree, find_items, find_tree
from orbit_ckpt._src.formats.run_metadata import latest_marked
from orbit_ckpt._src.formats.runs import (
    Run,
    foreign_step,
    is_one_checkpoint,
    locate_run,
    series_of,
)
from orbit_ckpt._src.storage.atomic import looks_like_checkpoint
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.layout import STEP_METADATA, number_in
from orbit_ckpt._src.storage.path import resolve_path, storage_errors
from orbit_ckpt._src.storage.store_view import viewing

_MARKED = ("eFormer", "Levanter")


class Kind(StrEnum):
    """The possible kinds of a path.

    Attributes:
        CHECKPOINT: A complete checkpoint of Orbax's format, which is ours.
        ITEM: An item of one.
        RUN: A directory of finished checkpoints, by any program.
        FOREIGN: A checkpoint of another program, or a part of one.
        UNFINISHED: A save in progress, or one that a dead process left.
        NOTHING: None of the above.
    """

    CHECKPOINT = "checkpoint"
    ITEM = "item"
    RUN = "run"
    FOREIGN = "foreign"
    UNFINISHED = "unfinished"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Located:
    """The identity of a path.

    Attributes:
        path: The path.
        kind: Its kind.
        tree: The directory of the tree of Orbax's format that `load` reads; None without one.
        reader: The other program's format that it is read as, None for Orbax's.
        problem: Why no tree can be read; None if one can.
        run: The steps of a run, none of one checkpoint.
    """

    path: Path
    kind: Kind
    tree: Path | None = None
    reader: Format | None = None
    problem: CheckpointError | None = None
    run: Run = field(default_factory=Run)

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a complete checkpoint or an item of one, by any program."""
        return self.kind in {Kind.CHECKPOINT, Kind.ITEM, Kind.FOREIGN}

    @property
    def items(self) -> Sequence[str]:
        """Names of the items of a checkpoint; an empty one for a tree without items."""
        return [""] if self.tree == self.path else find_items(self.path)

    @property
    def format_name(self) -> str:
        """What `detect_format` calls the format.

        Raises:
            CheckpointError: There is no checkpoint.
        """
        self.check()
        newest = self.run.newest
        if self.run.is_mixed and newest is not None:  # that of the step that is the latest
            return format_name(newest.reader)
        return format_name(self.reader)

    def check(self) -> None:
        """Check that a checkpoint or a run exists.

        Raises:
            CheckpointNotFoundError: Neither does; the message says what does.
            IncompleteCheckpointError: It is a save that did not finish.
        """
        if self.kind in {Kind.NOTHING, Kind.UNFINISHED} and self.problem is not None:
            raise self.problem

    def step_to_read(self) -> Path | None:
        """Return the step that is loaded for a run: its newest.

        Returns:
            None if the path is not a run, if an item next to the steps is loaded, or if the steps
            have no numbers, or numbers of several series such as `alice_1` and `bob_2`.
        """
        if self.kind is not Kind.RUN or self.tree is not None:
            return None
        series = {series_of(step.path) for step in self.run.steps if step.step is not None}
        if len(series) > 1 and not self.run.is_mixed:
            return None
        newest = newest_of(self.path, self.run)
        return newest if newest in {step.path for step in self.run.steps} else None


def locate(path: Path) -> Located:
    """Identify a path; looks at names and first bytes only.

    A checkpoint of Orbax's format since 0.3 needs no import of other formats. Other programs also
    use the names of older ones, so their formats are checked first.

    Raises:
        OSError: It cannot be read.
    """
    search, missing = TreeSearch(None), None
    try:
        search = find_tree(path)
    except IncompleteCheckpointError as error:
        return Located(path, Kind.UNFINISHED, problem=error)
    except UnsafePathError as error:
        return Located(path, Kind.CHECKPOINT, problem=error)
    except CheckpointNotFoundError as error:
        missing = error
    if search.problem is not None:
        return Located(path, Kind.CHECKPOINT, problem=search.problem)
    tree = search.directory
    if search.is_sure and not (search.steps or _may_be_step(path, tree)):
        return Located(path, _kind_at(path, tree), tree)
    run = locate_run(path)
    reader, lacks = None, ""
    if not (search.is_sure or run.is_mixed or (search.steps and run.newest)):
        reader, lacks = find_format(path)
    names = search.steps or [step.path.name for step in run.steps]
    kind, problem = Kind.NOTHING, None
    if reader is not None:
        is_run = any(step.reader is not None for step in run.steps)
        kind, tree = Kind.RUN if is_run else Kind.FOREIGN, None
    elif run.steps and (run.newest is not None or search.steps):
        kind, tree = Kind.RUN, _tree_of_run(search, run)
    elif tree is not None or (missing is None and _looks_complete(path)):
        kind = _kind_at(path, tree)
    elif run.steps:
        kind = Kind.RUN
    if reader is None and tree is None:
        problem = CheckpointNotFoundError(f"{missing or explain_no_tree(path, names)}{lacks}")
    return Located(path, kind, tree, reader, problem, run)


def _looks_complete(path: Path) -> bool:
    """Return whether a directory is a checkpoint without trees; in a store it has a marker."""
    return directory_of(path).has_markers or looks_like_checkpoint(path)


def _kind_at(path: Path, tree: Path | None) -> Kind:
    """Return whether a directory is a checkpoint or an item of the one that it is in."""
    if tree is not None and tree != path:
        return Kind.CHECKPOINT
    around = path.parent / STEP_METADATA
    return Kind.ITEM if around.is_file() else Kind.CHECKPOINT


def _may_be_step(path: Path, tree: Path | None) -> bool:
    """Return whether a tree may be a step of a release that did not mark its steps."""
    is_numbered = tree is not None and tree != path and number_in(tree.name) is not None
    return is_numbered and not (path / STEP_METADATA).is_file()


def _tree_of_run(search: TreeSearch, run: Run) -> Path | None:
    """Return the tree to read from a run: an item next to the steps, or the only step."""
    tree = search.directory
    if tree is None or len(run.steps) == 1:
        return tree
    names = {step.path.name for step in run.steps if step.step is not None}
    return None if tree.name in names or (run.is_mixed and not search.is_sure) else tree


def detect_format(path: str | os.PathLike[str]) -> str:
    """Return the format of a checkpoint or a run; reads names and first bytes only.

    A run that several programs wrote into has the format of its newest step.

    Args:
        path: A path as `load` takes it, or the directory of a run; in an object store too.

    Returns:
        `"orbax"` for Orbax's format and ours, `"t5x"`, `"tf_checkpoint"`, `"eformer"`,
        `"levanter"`, `"flax_msgpack"`, `"safetensors"`, or the name of a plug-in's format.

    Raises:
        CheckpointNotFoundError: The format is unknown; lists what each format lacks.
        IncompleteCheckpointError: It is a save that did not finish.
        StorageError: It cannot be read.

    Example:
        >>> orbit_ckpt.save("run/step_1", {"w": np.ones((2, 3))})
        >>> orbit_ckpt.detect_format("run/step_1")
        'orbax'
    """
    place = resolve_path(path)
    with viewing([place]), storage_errors(place, "reading", "Check that it can be read."):
        return locate(place).format_name


def find_latest_checkpoint(path: str | os.PathLike[str]) -> Path | None:
    """Return the newest checkpoint of a run, of any program.

    The step decides. Of two with the same number, this library's or Orbax's wins, and a warning is
    logged. In a run of eFormer and Levanter alone, the time of writing decides, then the step, as
    in those libraries: every directory with a `metadata.json` counts, temporary ones too, and one
    whose file is damaged is skipped with a warning.

    Args:
        path: The run, or one checkpoint; in an object store too.

    Returns:
        The path of the checkpoint, None if there is none.

    Raises:
        StorageError: The directory cannot be read.
    """
    root = resolve_path(path)
    advice = "Check that it may be read."
    with viewing([root]), storage_errors(root, "listing checkpoints", advice):
        run = locate_run(root)
        if not run.steps and _is_checkpoint(root):
            return root
        return newest_of(root, run)


def latest_step(path: str | os.PathLike[str]) -> int | None:
    """Return the number of a run's newest step; None if it has no steps or does not exist.

    The run may be our own, Orbax's, T5X's, eFormer's, Levanter's or Flax's, with any names of
    steps that end in their numbers. `load` of the run reads this step.

    Args:
        path: The run, or one of its checkpoints; in an object store too.

    Raises:
        StorageError: The directory cannot be read.
        ValueError: The newest step has a fraction, as Flax allows.

    Example:
        >>> orbit_ckpt.save("my_run/step_7", {"w": np.ones((2, 3))})
        >>> orbit_ckpt.latest_step("my_run"), orbit_ckpt.latest_step("no_run")
        (7, None)
    """
    with viewing([resolve_path(path)]):
        newest = find_latest_checkpoint(path)
        found = None if newest is None else foreign_step(newest)
    if newest is None:
        return None
    step = number_in(newest.name) if found is None else found.step
    if step is not None and step != int(step):
        raise ValueError(
            f"{newest} is step {step}, which is not a whole number. "
            "orbit_ckpt.checkpoint_utils.find_latest_checkpoint returns its path."
        )
    return None if step is None else int(step)


def newest_of(root: Path, run: Run) -> Path | None:
    """Return the newest checkpoint of a run, None if there is none."""
    if any(step.reader is None or step.reader.name not in _MARKED for step in run.steps):
        run.warn_of_duplicates()
        return run.newest and run.newest.path
    return latest_marked(root)


def _is_checkpoint(root: Path) -> bool:
    directory = directory_of(root)
    if directory.has_markers:
        return directory.is_committed() or foreign_step(root) is not None
    return root.is_dir() and is_one_checkpoint(root)
