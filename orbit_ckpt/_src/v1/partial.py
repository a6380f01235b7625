"""Save a tree in parts, each when it is ready, as one checkpoint.

The parts are checkpoints in a directory next to the final one. `finalize` joins them: it reads
arrays while it writes them, within the limits of memory of any save.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orbit_ckpt._src.checkpointer.options import MultiprocessingOptions
from orbit_ckpt._src.checkpointer.save import SaveRequest, begin_save, save_now
from orbit_ckpt._src.errors import CheckpointExistsError, CheckpointNotFoundError
from orbit_ckpt._src.formats.orbax.layout import find_items
from orbit_ckpt._src.metadata.files import read_step
from orbit_ckpt._src.metadata.schema import StepDocument
from orbit_ckpt._src.pytree.engine import TreeIO
from orbit_ckpt._src.pytree.restore.target import RestoreOptions
from orbit_ckpt._src.runtime.process import SingleProcess
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.integrity import open_checked
from orbit_ckpt._src.storage.path import PathLike, describe_directory, resolve_path
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.build import build_tree
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import NamePath, format_path
from orbit_ckpt._src.v1.context import Context, current_context
from orbit_ckpt._src.v1.errors import PartialSaveReplacementError
from orbit_ckpt._src.v1.handlers import STATE
from orbit_ckpt._src.v1.response import SaveResponse
from orbit_ckpt._src.v1.saving import item_to_save, save_request
from orbit_ckpt._src.v1.together import run_on_primary
from orbit_ckpt._src.v1.types import AsyncResponse, JsonType

_SUFFIX = ".partial_save"
_TREES = TreeIO()


def save(path: PathLike, state: Any, *, custom_metadata: JsonType | None = None) -> None:
    """Save a part of a tree; `finalize` makes a checkpoint of all parts.

    Args:
        path: Where the checkpoint will be.
        state: A tree with some of its leaves.
        custom_metadata: A JSON object to store with the checkpoint; those of all parts are merged.

    Raises:
        CheckpointExistsError: The checkpoint is finalized.
        PartialSaveReplacementError: Another part has some of these leaves.
    """
    place, context = resolve_path(path), current_context()
    part = _new_part(place, state)
    request = save_request(part, {STATE: state}, context, custom_metadata=custom_metadata)
    save_now(request, context.session())


def save_async(
    path: PathLike, state: Any, *, custom_metadata: JsonType | None = None
) -> AsyncResponse[None]:
    """Save a part of a tree in the background; for the arguments see `save`."""
    place, context = resolve_path(path), current_context()
    part = _new_part(place, state)
    request = save_request(part, {STATE: state}, context, custom_metadata=custom_metadata)
    return SaveResponse(begin_save(request, context.session()), None)


def finalize(path: PathLike) -> None:
    """Make a checkpoint of all parts that were saved for it.

    Args:
        path: Where the checkpoint will be; or the directory of its parts.

    Raises:
        CheckpointExistsError: The checkpoint is finalized already.
        CheckpointNotFoundError: No part has been saved.
    """
    given, context = resolve_path(path), current_context()
    final = given.with_name(given.name.removesuffix(_SUFFIX))
    folder = _folder_of(final)
    _check_free(final)
    parts = sorted(_parts(folder), key=_began)
    if not parts:
        raise CheckpointNotFoundError(
            f"No part of {final} has been saved: {describe_directory(folder)}."
        )
    run_on_primary(f"joining of {final}", context, lambda: _join(parts, final, context))


def _join(parts: Sequence[Path], final: Path, context: Context) -> None:
    """Save a checkpoint with all parts on this process alone, and remove them."""
    custom: dict[str, Any] = {}
    for part in parts:
        custom |= _document(part).custom_metadata
    item = item_to_save({STATE: _joined(parts)}, context)
    alone = replace(
        context.session(), multiprocessing=MultiprocessingOptions(group=SingleProcess())
    )
    save_now(SaveRequest(final, item, custom_metadata=custom), alone)
    directory_of(_folder_of(final)).delete_hidden()


def _new_part(final: Path, state: object) -> Path:
    """Return the directory of a new part, named after its leaves: alike on all processes.

    Raises:
        CheckpointExistsError: The checkpoint is finalized.
        PartialSaveReplacementError: Another part has some of these leaves.
    """
    _check_free(final)
    folder, new = _folder_of(final), flatten(state).names
    for part in _parts(folder):
        saved = flatten(_TREES.metadata(part / STATE).tree).names
        both = sorted(format_path(name) for name in _shared(new, saved))
        if both:
            raise PartialSaveReplacementError(
                f"{final}: a part with {shorten_list(both, 8)} has been saved. Save every leaf "
                "once; parts cannot replace each other."
            )
    digest = hashlib.sha256(repr(sorted(new)).encode()).hexdigest()
    return folder / f"part_{digest[:16]}"


def _shared(new: Sequence[NamePath], saved: Sequence[NamePath]) -> Iterator[NamePath]:
    """Yield new leaves that are saved, or lie above or below a saved one."""
    above = {name[:depth] for name in saved for depth in range(len(name) + 1)}
    leaves = set(saved)
    for name in new:
        if name in above or any(name[:depth] in leaves for depth in range(len(name))):
            yield name


def _joined(parts: Sequence[Path]) -> object:
    """Return the tree of all parts, with arrays that are read when they are written."""
    leaves: list[Any] = []
    for part in parts:
        flat = flatten(_TREES.restore(part / STATE, RestoreOptions(lazy=True)))
        leaves += zip(flat.paths, flat.values, strict=True)
    return build_tree(leaves)


def _folder_of(final: Path) -> Path:
    return final.with_name(f"{final.name}{_SUFFIX}")


def _parts(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [folder / name for name in find_items(folder)]
    return [part for part in found if directory_of(part).is_committed()]


def _document(part: Path) -> StepDocument:
    return read_step(open_checked(part))


def _began(part: Path) -> int:
    return _document(part).init_timestamp_nsecs or 0


def _check_free(final: Path) -> None:
    if final.exists():
        raise CheckpointExistsError(
            f"{final} exists and is finalized. Choose another path, or delete it first."
        )
