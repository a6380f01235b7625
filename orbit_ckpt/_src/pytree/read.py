"""Open a stored tree and read from it, while other processes may replace it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.formats.orbax import open_tree
from orbit_ckpt._src.formats.registry import open_checkpoint
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.storage.consistent_read import read_consistently
from orbit_ckpt._src.warn import warn_caller

T = TypeVar("T")


def read_tree(
    path: Path,
    read: Callable[[StoredTree], Coroutine[object, object, T]],
    *,
    reader: Format | None = None,
    aggregate: str | None = None,
    has_target: bool = False,
    as_whole: bool = False,
) -> T:
    """Open a stored tree and call a function on it; warn of information lost without a target.

    Args:
        path: Path of the tree.
        read: Called again if the tree was replaced meanwhile.
        reader: The format to read as, None to detect it.
        aggregate: Name of the msgpack file of early Orbax; None for `checkpoint`.
        has_target: Whether a target provides the structure, which then may be unrecorded.
        as_whole: Whether the result is the stored tree unchanged.

    Raises:
        CheckpointNotFoundError: There is no tree.
        CorruptionError: Stored data is missing or damaged.
    """
    losses: set[str | None] = set()

    async def open_and_read(path: Path) -> T:
        if reader is None and aggregate and (path / aggregate).is_file():
            source = open_tree(path, aggregate=aggregate)
        else:
            source = open_checkpoint(
                path, allow_unstructured=has_target, reader=reader, as_whole=as_whole
            )
        losses.add(None if has_target else source.loss)
        return await read(source)

    result = read_consistently([path], open_and_read)
    for loss in filter(None, losses):
        warn_caller(loss)
    return result
