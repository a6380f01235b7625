"""Errors of the v1 API that the rest of the library does not raise."""

from __future__ import annotations

from orbit_ckpt._src.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    IncompleteCheckpointError,
    TreeMismatchError,
)


class InvalidLayoutError(CheckpointError, ValueError):
    """A path holds no checkpoint of the expected layout."""


class MissingLayoutError(InvalidLayoutError, CheckpointNotFoundError):
    """A path holds no checkpoint at all."""


class IncompleteLayoutError(InvalidLayoutError, IncompleteCheckpointError):
    """A path holds a save that did not finish."""


class CheckpointableMismatchError(TreeMismatchError, KeyError):
    """A checkpointable among several differs from its abstract form; Orbax raises a KeyError."""


class DeletionInProgressError(CheckpointError, RuntimeError):
    """A checkpointable is being deleted; the deletion has not been finished."""


class DeletionRecoveryError(CheckpointError, RuntimeError):
    """The record of an unfinished deletion does not fit the checkpoint."""


class PartialSaveError(CheckpointError):
    """A part of a checkpoint cannot be added to it."""


class PartialSaveReplacementError(PartialSaveError):
    """A part would replace leaves that another part has saved."""
