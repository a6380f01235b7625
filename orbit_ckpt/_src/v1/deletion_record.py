"""`_CHECKPOINT_DELETION`: the record of the deletion of one checkpointable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.metadata.codec import decode_json
from orbit_ckpt._src.storage.inner_path import read_inner
from orbit_ckpt._src.storage.layout import STEP_METADATA
from orbit_ckpt._src.v1.errors import DeletionRecoveryError

RECORD = "_CHECKPOINT_DELETION"


class DeletionRecord(Struct, frozen=True):
    """The deletion of one checkpointable, in Orbax's form.

    Attributes:
        operation_id: Identifies the deletion.
        checkpointable_name: What is deleted.
        destination: Where it is moved to, None if it is removed.
        original_metadata: The checkpoint's metadata before.
        updated_metadata: The checkpoint's metadata after.
    """

    operation_id: str
    checkpointable_name: str
    destination: str | None
    original_metadata: dict[str, Any]
    updated_metadata: dict[str, Any]


def read_record(path: Path) -> DeletionRecord | None:
    """Return the record of an unfinished deletion in a checkpoint, None if there is none.

    Raises:
        DeletionRecoveryError: It does not fit the checkpoint.
    """
    try:
        data = read_inner(path, RECORD)
    except (FileNotFoundError, NotADirectoryError):
        return None
    advice = "Compare it with the checkpoint's metadata, and remove it if nothing is missing."
    try:
        record = decode_json(data, DeletionRecord, str(path / RECORD))
        current = decode_json(
            read_inner(path, STEP_METADATA), dict[str, Any], str(path / STEP_METADATA)
        )
    except (FormatError, OSError) as error:
        raise DeletionRecoveryError(f"{path / RECORD}: {error} {advice}") from error
    expected = without_item(record.original_metadata, record.checkpointable_name)
    if record.updated_metadata != expected or current not in (record.original_metadata, expected):
        raise DeletionRecoveryError(
            f"{path / RECORD} is about other metadata than the checkpoint's. {advice}"
        )
    return record


def pending_deletion(path: Path) -> str | None:
    """Return the checkpointable whose deletion has not finished, if any."""
    record = read_record(path)
    return None if record is None else record.checkpointable_name


def without_item(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a checkpoint's metadata without one checkpointable."""
    handlers: dict[str, Any] = document.get("item_handlers") or {}
    return {**document, "item_handlers": {k: v for k, v in handlers.items() if k != name}}
