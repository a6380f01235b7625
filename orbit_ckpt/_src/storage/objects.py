"""Checkpoints in object stores: written in place, visible once their marker exists.

Stores have no rename. A save first puts an object that says it has begun, then everything else,
last the commit marker; a removal goes in the opposite order. So a marker always stands for a
complete checkpoint, whenever a process dies, and nothing without a marker is listed or restored.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from typing import cast

from orbit_ckpt._src.errors import CheckpointExistsError, StorageError
from orbit_ckpt._src.runtime.process import reset_in_child
from orbit_ckpt._src.storage.atomic import marker_text, not_open_here
from orbit_ckpt._src.storage.layout import (
    ARRAY_METADATAS,
    COMMIT_MARKER,
    IN_PROGRESS,
    MANIFEST,
    OCDBT_DATA,
    OCDBT_MANIFEST,
)
from orbit_ckpt._src.storage.path import describe_directory
from orbit_ckpt._src.storage.store_path import StorePath, map_requests

_CLEANUP_S = 60.0
"""Maximum wait for each request that removes objects of a failed save."""

_REMOVAL = b""
"""Replaces a save's token while a checkpoint is removed."""

_LATE_OBJECT = re.compile(
    rf"(.+/)?({OCDBT_DATA}/[0-9a-f]{{32}}|ocdbt\.process_[a-z]*\d+/({OCDBT_MANIFEST}|{MANIFEST})"
    rf"|{ARRAY_METADATAS}/process_\d+)"
)
"""What may arrive late, after the objects of a failed save were removed."""

_logger = logging.getLogger(__name__)


class ObjectDirectory:
    """A place in a store being written; the counterpart of `AtomicDirectory`.

    Use as a context manager: leaving it without `commit` removes everything written.
    """

    def __init__(self, final: StorePath, *, overwrite: bool = False) -> None:
        self.final = self.path = final
        self._overwrite = overwrite
        self._token = os.urandom(16).hex().encode()
        self._is_open = False
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Leave the place to the parent: remove and commit nothing here."""
        self._is_open = False

    def __enter__(self) -> ObjectDirectory:
        self._make_room()
        (self.path / IN_PROGRESS).write_bytes(self._token)
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._is_ours(_CLEANUP_S):
                remove_checkpoint(self.path, deadline_s=_CLEANUP_S)
        except StorageError as error:
            _logger.warning(
                "%s: what a failed save has written is still there: %s", self.path, error
            )

    def commit(self) -> None:
        """Make the checkpoint visible.

        Raises:
            CheckpointError: It is not open in this process.
            StorageError: The store failed, or another save into the same place has begun. If it
                failed at the marker, which may still arrive, leaving removes nothing.
        """
        if not self._is_open:
            raise not_open_here(self.path)
        is_ours, text = map_requests(
            lambda ask: ask(), (self._is_ours, lambda: marker_text(self.path, self.path))
        )
        if not is_ours:
            self._is_open = False  # the existing objects are not ours to remove
            raise StorageError(
                f"{self.path}: another save into the same place began before this one ended. Let "
                "one process at a time save there."
            )
        # the token makes it differ from the marker of any other checkpoint in this place
        marker = f"{text}\n{self._token.decode()}\n"
        self._is_open = False  # the marker may still arrive, so keep the objects that it stands for
        try:
            (self.path / COMMIT_MARKER).write_bytes(marker.encode())
        except StorageError as error:
            if not self._has_arrived(marker.encode()):
                raise _unknown_outcome(self.path, error) from error
        with contextlib.suppress(StorageError):  # ignored if a marker exists
            (self.path / IN_PROGRESS).unlink()

    def _has_arrived(self, marker: bytes) -> bool:
        path = self.path / COMMIT_MARKER
        try:
            return path.bucket.read(path.key, deadline_s=_CLEANUP_S) == marker
        except StorageError:
            return False

    def _is_ours(self, deadline_s: float | None = None) -> bool:
        path = self.path / IN_PROGRESS
        return path.bucket.read(path.key, deadline_s=deadline_s) == self._token

    def _make_room(self) -> None:
        """Remove the objects of a dead save, or of the checkpoint to overwrite."""
        listing, is_object = map_requests(
            lambda ask: ask(), (self.path.keys_below, self.path.is_file)
        )
        names = cast("list[str]", listing)
        if not names:
            if is_object:
                raise CheckpointExistsError(f"{self.path} is an object; choose another path.")
            return
        is_committed = COMMIT_MARKER in names
        is_left = IN_PROGRESS in names or all(map(_LATE_OBJECT.fullmatch, names))
        if not is_committed and not is_left:
            raise CheckpointExistsError(
                f"{self.path} exists and is no checkpoint that was saved there: "
                f"{describe_directory(self.path)}. It is not overwritten; choose another path, or "
                "remove it yourself."
            )
        if is_committed and not self._overwrite:
            raise CheckpointExistsError(
                f"Destination {self.path} already exists. Choose another path, or pass "
                "overwrite=True (force=True) to replace it."
            )
        if not is_committed:
            _logger.info("Removing %s, left behind by a save that did not finish", self.path)
        remove_checkpoint(self.path)


def _unknown_outcome(path: StorePath, error: StorageError) -> StorageError:
    return StorageError(
        f"{path}: it is not known whether this checkpoint was committed: {error} All of its data "
        f"is there and was left there: if {COMMIT_MARKER} has arrived, or yet does, the checkpoint "
        "is complete, and loading it works as always. If loading says that it is incomplete, save "
        "there again, which removes what is left."
    )


def is_committed(path: StorePath) -> bool:
    """Return whether a path is a complete checkpoint, or an item of one."""
    if not path.key:
        return (path / COMMIT_MARKER).is_file()
    if (path / COMMIT_MARKER).is_file():
        # items get a marker too, before their checkpoint has one
        parent = path.parent
        in_unfinished = (parent / IN_PROGRESS).is_file() and not (parent / COMMIT_MARKER).is_file()
        return not in_unfinished
    if (path / IN_PROGRESS).is_file():
        return False  # an item that is being replaced
    return (path.parent / COMMIT_MARKER).is_file()


def withdraw(path: StorePath, *, deadline_s: float | None = None) -> bool:
    """Hide a checkpoint before its removal; return whether it was visible."""
    if not (path / COMMIT_MARKER).is_file():
        return False
    # also if the token of its save still exists, which is ignored if a marker exists
    (path / IN_PROGRESS).write_bytes(_REMOVAL)
    path.bucket.delete((path / COMMIT_MARKER).key, deadline_s=deadline_s)
    return True


def is_half_removed(path: StorePath) -> bool:
    """Return whether a removal of a checkpoint was interrupted; no save begins there."""
    try:
        began = (path / IN_PROGRESS).read_bytes() == _REMOVAL
    except FileNotFoundError:
        return False
    return began and not (path / COMMIT_MARKER).is_file()


def remove_checkpoint(path: StorePath, *, deadline_s: float | None = None) -> None:
    """Delete a checkpoint; if interrupted, the rest is known to be unfinished."""
    withdraw(path, deadline_s=deadline_s)
    path.bucket.delete_below(path.prefix, last=IN_PROGRESS, deadline_s=deadline_s)
