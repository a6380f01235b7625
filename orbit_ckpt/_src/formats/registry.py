"""Open a checkpoint of any format: our own and Orbax's first, then those of other programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from orbit_ckpt._src.errors import CheckpointError, FormatError
from orbit_ckpt._src.formats.base import Format, WholeReader
from orbit_ckpt._src.formats.locate import locate
from orbit_ckpt._src.formats.orbax.read import open_tree
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.storage.consistent_read import read_consistently
from orbit_ckpt._src.text import warn_caller

T = TypeVar("T")


def open_checkpoint(
    path: Path,
    *,
    allow_unstructured: bool = False,
    reader: Format | None = None,
    as_whole: bool = False,
) -> StoredTree:
    """Open the tree in a checkpoint of any format.

    Args:
        path: A directory, or a file of a format with a single one.
        allow_unstructured: See `orbax.open_tree`.
        reader: The format, None to find out.
        as_whole: Whether a tree with `read_whole` will do.

    Raises:
        IncompleteCheckpointError: The checkpoint is a save that did not finish.
        CheckpointNotFoundError: There is none of a known format; lists what each format lacks.
        CorruptionError: A file differs from its checksum.
        FormatError: A document is not understood.
    """
    if reader is not None:
        return _open(reader, path, as_whole=as_whole)
    located = locate(path)
    step = located.step_to_read()
    if step is not None:
        return open_checkpoint(step, allow_unstructured=allow_unstructured, as_whole=as_whole)
    if located.reader is not None:
        return _open(located.reader, path, as_whole=as_whole)
    if located.tree is None and located.problem is not None:
        raise located.problem
    return open_tree(located.tree or path, allow_unstructured=allow_unstructured)


def _open(known: Format, path: Path, *, as_whole: bool) -> StoredTree:
    """Return what a reader makes of a path.

    Raises:
        FormatError: The reader of a plug-in failed, or returned something else than a tree.
    """
    check_reader(known)
    read = known.open_whole if as_whole and isinstance(known, WholeReader) else known.open
    kind = type(known)
    try:
        found = cast(object, read(path))
    except (CheckpointError, OSError):
        raise
    except Exception as error:  # of a plug-in, which may raise anything
        if kind.__module__.startswith("orbit_ckpt."):
            raise
        raise FormatError(
            f"{path}: the reader {known.name!r} ({kind.__module__}.{kind.__qualname__}) failed: "
            f"{type(error).__name__}: {error}. Tell its authors, or give another reader=."
        ) from error
    if not isinstance(found, StoredTree):
        raise FormatError(
            f"{path}: the reader {known.name!r} ({kind.__module__}.{kind.__qualname__}) returned "
            f"{show(found)}, expected a StoredTree. Tell its authors, or give another reader=."
        )
    return found


def check_reader(reader: object) -> None:
    """Check what a caller gives as the format to read as; None passes.

    Raises:
        TypeError: It is no format, such as the name or the class of one.
    """
    if isinstance(reader, type) or not isinstance(reader, Format | None):
        raise TypeError(
            f"reader must be a format to read as, found {show(reader)}. Give "
            "orbit_ckpt.t5x.T5XFormat() or orbit_ckpt.t5x.TensorFlowFormat(); all others are "
            "recognized without it."
        )


def read_tree(
    path: Path,
    read: Callable[[Callable[[], StoredTree]], T],
    *,
    reader: Format | None = None,
    aggregate: str | None = None,
    has_target: bool = False,
    as_whole: bool = False,
) -> T:
    """Open a stored tree and call a function on it; warn of information lost without a target.

    Args:
        path: Path of the tree.
        read: Called with a function that opens the tree, and again if the tree was replaced during
            the read.
        reader: The format to read as, None to detect it.
        aggregate: Name of the msgpack file of early Orbax; None for `checkpoint`.
        has_target: Whether a target provides the structure, which then may be unrecorded.
        as_whole: Whether the result is the stored tree unchanged.

    Raises:
        CheckpointNotFoundError: There is no tree.
        CorruptionError: Stored data is missing or damaged.
    """
    losses: set[str | None] = set()

    def open_tree_of(path: Path) -> StoredTree:
        if reader is None and aggregate and (path / aggregate).is_file():
            source = open_tree(path, aggregate=aggregate)
        else:
            source = open_checkpoint(
                path, allow_unstructured=has_target, reader=reader, as_whole=as_whole
            )
        losses.add(None if has_target else source.loss)
        return source

    def attempt(path: Path) -> T:
        return read(partial(open_tree_of, path))

    result = read_consistently([path], attempt)
    for loss in filter(None, losses):
        warn_caller(loss)
    return result
