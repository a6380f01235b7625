"""Delete a checkpoint, or one checkpointable of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orbit_ckpt._src.errors import CheckpointNotFoundError, ItemNotFoundError
from orbit_ckpt._src.guards import is_json_object
from orbit_ckpt._src.metadata.codec import decode_json, encode_json
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.storage.amend import forget_files
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.durable import sync_directory, write_file
from orbit_ckpt._src.storage.inner_path import inner_file, read_inner
from orbit_ckpt._src.storage.integrity import read_manifest, write_manifest
from orbit_ckpt._src.storage.layout import STEP_METADATA, TREE_METADATA
from orbit_ckpt._src.storage.path import PathLike, describe_directory, resolve_path
from orbit_ckpt._src.v1.context import Context, current_context
from orbit_ckpt._src.v1.deletion_record import (
    RECORD,
    DeletionRecord,
    read_record,
    without_item,
)
from orbit_ckpt._src.v1.errors import DeletionRecoveryError, InvalidLayoutError
from orbit_ckpt._src.v1.handlers import METRICS
from orbit_ckpt._src.v1.layout import AUTO, INDICATOR, check_name
from orbit_ckpt._src.v1.options import CheckpointLayout
from orbit_ckpt._src.v1.response import BackgroundResponse
from orbit_ckpt._src.v1.together import run_on_primary
from orbit_ckpt._src.v1.types import AsyncResponse

_MARKS = (INDICATOR, STEP_METADATA, TREE_METADATA)


def delete(
    path: PathLike, *, checkpointable_name: str | None = None, missing_ok: bool = False
) -> bool:
    """Delete a checkpoint, or one of its checkpointables.

    Args:
        path: The checkpoint.
        checkpointable_name: What to delete of it, None for the whole checkpoint. The last one
            cannot be deleted alone. A deletion that was interrupted is finished by another one of
            the same checkpointable.
        missing_ok: Whether it may be missing.

    Returns:
        Whether it existed.

    Raises:
        CheckpointNotFoundError: It does not exist.
        InvalidLayoutError: The path is no checkpoint.
        DeletionRecoveryError: The deletion of another checkpointable has not been finished.
    """
    name = checkpointable_name
    return delete_async(path, checkpointable_name=name, missing_ok=missing_ok).result()


def delete_async(
    path: PathLike, *, checkpointable_name: str | None = None, missing_ok: bool = False
) -> AsyncResponse[bool]:
    """Delete in the background what `delete` deletes; errors in the arguments are raised now."""
    context = current_context()
    work = plan_deletion(resolve_path(path), checkpointable_name, context, missing_ok=missing_ok)

    async def run() -> bool:
        if work is None:
            return False
        what = f"deletion of {checkpointable_name or 'all'} of {path}"
        await asyncio.to_thread(run_on_primary, what, context, work)
        return True

    return BackgroundResponse(run())


def check_deletion(context: Context, *, missing_ok: bool) -> None:
    """Check the options of a deletion.

    Raises:
        NotImplementedError: The context asks for a way to delete that does not exist.
        TypeError: `missing_ok` is no bool.
    """
    if not isinstance(missing_ok, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
        raise TypeError(f"missing_ok must be True or False, found {show(missing_ok)}.")
    if context.deletion.gcs_deletion_options.todelete_full_path is not None:
        raise NotImplementedError(
            "todelete_full_path is not supported: object stores have no rename. Leave it out; "
            "checkpoints are then deleted."
        )


def plan_deletion(
    path: Path, name: str | None, context: Context, *, missing_ok: bool, is_step: bool = False
) -> Callable[[], None] | None:
    """Return a function that deletes a checkpoint or a part of it, None if there is nothing.

    Args:
        path: The checkpoint.
        name: The checkpointable, None for all.
        context: The options.
        missing_ok: Whether it may be missing.
        is_step: Whether the path is known to be a step of a run.
    """
    check_deletion(context, missing_ok=missing_ok)
    if name is not None:
        check_name(name, {METRICS, AUTO, STEP_METADATA, RECORD})
    if path.parent == path or path.is_symlink():
        what = "a link" if path.is_symlink() else "the root of a storage"
        raise ValueError(f"{path} is {what}; give the directory of a checkpoint.")
    if not path.exists():
        if missing_ok:
            return None
        raise CheckpointNotFoundError(f"No checkpoint at {path}: {describe_directory(path)}.")
    _check_root(path, context, is_step=is_step)
    if name is None:
        return lambda: _delete_all(path)
    return _plan_item(path, name, missing_ok=missing_ok)


def _check_root(path: Path, context: Context, *, is_step: bool) -> None:
    """Check that a path is a whole checkpoint.

    Raises:
        InvalidLayoutError: It is not.
        NotADirectoryError: It is a file.
        NotImplementedError: The context is for another layout.
    """
    if not path.is_dir():
        raise NotADirectoryError(f"{path}: {describe_directory(path)}. Give a checkpoint.")
    if context.checkpoint_layout is CheckpointLayout.SAFETENSORS:
        raise NotImplementedError("Only checkpoints of Orbax's layout are deleted.")
    if is_step:
        return
    if any((path.parent / mark).exists() for mark in (INDICATOR, STEP_METADATA, RECORD)):
        raise InvalidLayoutError(
            f"{path} is one checkpointable of the checkpoint {path.parent}. Delete it there, with "
            f"checkpointable_name={path.name!r}."
        )
    is_empty = next(iter(path.iterdir()), None) is None
    if not is_empty and not any((path / mark).is_file() for mark in _MARKS):
        raise InvalidLayoutError(f"No checkpoint at {path}: {describe_directory(path)}.")


def _delete_all(path: Path) -> None:
    """Take a checkpoint out of the way in one step, then delete its files."""
    hidden = directory_of(path).hide(path.parent, None)
    if hidden is not None:
        directory_of(hidden).sync_hidden(path)
        directory_of(hidden).delete_hidden()


def _plan_item(path: Path, name: str, *, missing_ok: bool) -> Callable[[], None] | None:
    record = read_record(path)
    if record is not None:
        if record.checkpointable_name != name:
            raise DeletionRecoveryError(
                f"{path}: the deletion of {record.checkpointable_name!r} has not been finished. "
                "Delete that again first."
            )
        return lambda: _delete_item(path, record, resumes=True)
    document: dict[str, Any] = decode_json(
        read_inner(path, STEP_METADATA), dict[str, Any], str(path / STEP_METADATA)
    )
    handlers: object = document.get("item_handlers")
    if not is_json_object(handlers):
        raise InvalidLayoutError(f"{path} has no named checkpointables. Delete all of it.")
    if name not in handlers or not inner_file(path, name).is_dir():
        if missing_ok and not inner_file(path, name).exists():
            return None
        raise ItemNotFoundError(
            f"No checkpointable {name!r} at {path}. Its checkpointables are {sorted(handlers)}."
        )
    others = [other for other in handlers if other not in {name, METRICS}]
    if not any((path / other).is_dir() for other in others):
        raise ValueError(
            f"{name!r} is the last checkpointable of {path}. Delete the whole checkpoint."
        )
    planned = DeletionRecord(uuid.uuid4().hex, name, None, document, without_item(document, name))
    return lambda: _delete_item(path, planned)


def _delete_item(path: Path, record: DeletionRecord, *, resumes: bool = False) -> None:
    """Delete one checkpointable so that a death in between leaves a record to finish by.

    The record comes first: from then on readers refuse the checkpointable. The manifest forgets its
    files before they are gone, and the checkpoint's own metadata last.
    """
    name = record.checkpointable_name
    if not resumes:
        directory_of(path).create_document("", RECORD, encode_json(record))
    forget_files(path, f"{name}/")
    item = path / name
    if item.exists():
        directory_of(item).delete_hidden()
    has_manifest = read_manifest(path) is not None
    forget_files(path, STEP_METADATA)
    (path / STEP_METADATA).unlink(missing_ok=True)
    write_file(path / STEP_METADATA, encode_json(record.updated_metadata))
    (path / RECORD).unlink()
    if has_manifest:
        write_manifest(path, below=STEP_METADATA)
    sync_directory(path)
