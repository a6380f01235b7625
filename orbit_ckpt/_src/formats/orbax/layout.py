"""Find checkpoints of Orbax's format, and their items and trees, by file names.

Opens a document only where the save of an item was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.errors import (
    CheckpointError,
    IncompleteCheckpointError,
)
from orbit_ckpt._src.metadata.codec import decode_json
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.inner_path import inner_file, read_inner
from orbit_ckpt._src.storage.layout import (
    AGGREGATE,
    IN_PROGRESS,
    OCDBT_MANIFEST,
    STEP_METADATA,
    TREE_METADATA,
    ZARR2_DOCUMENT,
    ZARR3_DOCUMENT,
    is_temporary_name,
    number_in,
)
from orbit_ckpt._src.storage.path import explain_no_checkpoint
from orbit_ckpt._src.text import shorten_list

_USUAL_ITEMS = ("default", "state", "pytree")
_NEVER_TREES = frozenset({"metrics", "metadata"})
_SURE_FILES = (TREE_METADATA, OCDBT_MANIFEST)
_TREE_FILES = (*_SURE_FILES, AGGREGATE)
_ARRAY_FILES = (ZARR2_DOCUMENT, ZARR3_DOCUMENT)


TREE_HANDLERS = ("PyTreeCheckpointHandler", "StandardCheckpointHandler")
"""Endings of the recorded names of handlers of trees."""


def check_item_complete(item: Path) -> None:
    """Check that an item of a complete checkpoint is not being replaced in place.

    Raises:
        IncompleteCheckpointError: The save that replaces it has not finished.
    """
    if (item / IN_PROGRESS).is_file():  # one request; a store may keep the file after the commit
        directory_of(item).check_complete()


class TreeSearch(Struct, frozen=True, gc=False):
    """The result of a search for trees of Orbax's format.

    Attributes:
        directory: The directory of the tree: the path itself or one of its items; None without one.
        is_sure: Whether it has a file that only such trees have. Early releases wrote none; their
            trees are recognized by names that other programs use too.
        steps: Names of the directories at the path that are checkpoints themselves.
        problem: Why the tree of a step cannot be read: a save that replaces it did not finish.
    """

    directory: Path | None
    is_sure: bool = False
    steps: Sequence[str] = ()
    problem: CheckpointError | None = None


def find_tree(path: Path) -> TreeSearch:
    """Look for the tree in a complete checkpoint: at the path itself or in one of its items.

    Of several items, prefer `default`, `state` or `pytree`, then the first that holds a tree.

    Raises:
        IncompleteCheckpointError: The checkpoint is a save that did not finish.
        CheckpointNotFoundError: It is not a directory.
    """
    directory_of(path).check_complete()
    sign = _sign_of(path)
    if sign is not None:
        return TreeSearch(path, sign in _SURE_FILES)
    names = find_items(path)
    # an item has no such file of its own; a directory with one is a checkpoint itself
    steps = directory_of(path).subdirectories_with(STEP_METADATA, names)
    others = {*steps, *_NEVER_TREES} - {*_USUAL_ITEMS}
    items = [name for name in names if name not in others]
    usual = [name for name in _USUAL_ITEMS if name in items]
    for name in (*usual, *(name for name in items if name not in usual)):
        sign = _sign_of(path / name)
        problem = _problem_of(path, name, is_tree=sign is not None)
        if problem is not None:
            return TreeSearch(None, problem=problem)
        if sign is not None:
            return TreeSearch(inner_file(path, name), sign in _SURE_FILES, steps)
    return TreeSearch(None, steps=steps)


def _problem_of(step: Path, name: str, *, is_tree: bool) -> CheckpointError | None:
    """Explain why a tree of a step is incomplete; None if it is complete, or not a tree.

    Args:
        step: The step; in a run, a step in progress is not a problem.
        name: The item.
        is_tree: Whether the item is known to hold a tree; if not, the step's record decides.
    """
    try:
        check_item_complete(step / name)
    except IncompleteCheckpointError as error:
        try:
            document = read_inner(step, STEP_METADATA)
            handlers = decode_json(document, _Handlers, str(step / STEP_METADATA)).item_handlers
        except FileNotFoundError:
            return None
        except CheckpointError:  # it is damaged
            return error
        recorded = handlers.get(name) if isinstance(handlers, dict) else None
        return error if is_tree or str(recorded).endswith(TREE_HANDLERS) else None
    return None


class _Handlers(Struct):
    """The field of a step's document that distinguishes trees from other items."""

    item_handlers: str | dict[str, str | None] | None = None


def is_tree(directory: Path) -> bool:
    """Return whether a directory has a file that only trees of Orbax's format have."""
    return any((directory / name).is_file() for name in _SURE_FILES)


def holds_tree(path: Path) -> bool:
    """Return whether a directory has the files of a tree."""
    return _sign_of(path) is not None


def _sign_of(path: Path) -> str | None:
    """Return the file that marks a directory as a tree, "" if arrays do, None if it is none."""
    for name in _TREE_FILES:
        if (path / name).is_file():
            return name
    return "" if _holds_arrays(path) else None


def _holds_arrays(path: Path) -> bool:
    """Return whether a directory directly contains arrays, as in trees of early releases."""
    found = directory_of(path).find_in_children((STEP_METADATA, *_ARRAY_FILES))
    _, first = next(found, ("", STEP_METADATA))
    return first != STEP_METADATA  # a directory of steps is not a tree


def find_items(path: Path) -> list[str]:
    """Return the names of the items of a checkpoint: its directories."""
    return [n for n in directory_of(path).subdirectories() if not is_temporary_name(n)]


def explain_no_tree(path: Path, steps: Sequence[str] = ()) -> str:
    """Return a message for a path without a tree.

    Args:
        path: The path.
        steps: Names of the checkpoints in it.
    """
    if steps:
        ordered = sorted(steps, key=lambda name: (number_in(name) or 0, name))
        return (
            f"{path} holds several checkpoints ({shorten_list(ordered, 8)}); give one of them, "
            f"for example {path / ordered[-1]}."
        )
    return explain_no_checkpoint(
        path,
        f"A checkpoint of orbit_ckpt or Orbax has a {TREE_METADATA} or a {OCDBT_MANIFEST}, or an "
        "item that has.",
    )
