"""Every error orbit_ckpt raises on purpose.

    CheckpointError
    ├── CheckpointNotFoundError      (FileNotFoundError)  nothing restorable at a path
    │   ├── StepNotFoundError        a run has no such step, or none at all
    │   └── ItemNotFoundError        (KeyError)  a checkpoint has no such item
    ├── CheckpointExistsError        (FileExistsError, ValueError)  destination is taken
    │   └── StepAlreadyExistsError   a manager has saved that step before
    ├── IncompleteCheckpointError    (ValueError)  a save that never committed
    ├── FormatError                  (ValueError)  a metadata document is not understood
    │   └── VersionError             it may be sound, but its version is not read here
    ├── CorruptionError              (ValueError)  bytes differ from what was saved
    │   └── UnsafePathError          (FormatError)  a name or link leads out of a checkpoint
    ├── StorageError                 (OSError)     the storage refused a read or a write
    ├── BackgroundSaveError          (RuntimeError)  an earlier save failed in the background
    ├── ItemError                    (RuntimeError)  an object that is an item raised an error
    ├── ProcessCountError            (ValueError)  saved by another number of processes
    ├── ProcessFailedError           (RuntimeError)  another process of the program has failed
    ├── ProcessTimeoutError          (TimeoutError)  processes did not come in time
    ├── TransformError               (ValueError)  rules do not fit a checkpoint or a target
    ├── MissingPackageError          (ImportError)   an optional package is not installed
    └── LeafError                    (ValueError)  some leaves are at fault
        ├── UnsupportedLeafError     values no type handler accepts
        ├── NameCollisionError       leaves that would share a storage name
        └── TreeMismatchError        target and checkpoint differ

Bad arguments raise `ValueError` or `TypeError`. A message says where, what was found, what was
expected and what to do. The built-in bases are those that Orbax raises for the same mistake, so
that `except ValueError` in existing scripts keeps working.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing_extensions import override

from orbit_ckpt._src.text import visible


class CheckpointError(Exception):
    """Root of all errors raised by orbit_ckpt.

    The text of an error and its notes have escapes in place of characters that are not printable,
    because names in a checkpoint could otherwise steer the terminal that shows them.
    """

    @override
    def __str__(self) -> str:
        return visible(super().__str__())

    @override
    def add_note(self, note: str, /) -> None:
        """Add a note, see `BaseException.add_note`."""
        super().add_note(visible(note))


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint, or no restorable item, at a path."""


class StepNotFoundError(CheckpointNotFoundError):
    """A run has no such step, or none at all."""


class ItemNotFoundError(CheckpointNotFoundError, KeyError):
    """A checkpoint has no such item."""

    __str__ = CheckpointNotFoundError.__str__  # that of `KeyError` puts the message in quotes


class CheckpointExistsError(CheckpointError, FileExistsError, ValueError):
    """The destination of a save exists and overwriting was not asked for."""


class StepAlreadyExistsError(CheckpointExistsError):
    """A manager has saved that step before."""


class IncompleteCheckpointError(CheckpointError, ValueError):
    """A directory holds a save that was never committed."""


class FormatError(CheckpointError, ValueError):
    """A metadata document is not valid, or was written by a version not known here."""


class VersionError(FormatError):
    """A checkpoint is of a later version or another variant of its format, which is not read.

    That says nothing about whether it is damaged.
    """


def check_version(where: str, version: int, newest: int) -> None:
    """Check that a document of ours was not written by a later release.

    Raises:
        VersionError: It was.
    """
    if version > newest:
        raise VersionError(
            f"{where}: format version {version}; this version of orbit_ckpt reads up to {newest}. "
            "Install a newer one."
        )


class CorruptionError(CheckpointError, ValueError):
    """Stored bytes are missing or are not the bytes that were saved.

    Attributes:
        path: Name of the damaged leaf, None if the damage is not in one leaf.
        chunk: Storage key of the damaged chunk, None if unknown.
        file: The file that holds the damaged bytes, None if unknown.
        what: What is wrong with them, None if only the message says it.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        chunk: str | None = None,
        file: str | None = None,
        what: str | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.chunk = chunk
        self.file = file
        self.what = what


class UnsafePathError(CorruptionError, FormatError):
    """A name or a link in a checkpoint leads outside of it, and is not followed."""


class StorageError(CheckpointError, OSError):
    """The storage failed, for example because it is full or not writable."""


class BackgroundSaveError(CheckpointError, RuntimeError):
    """A save that went on in the background failed; its cause is the error it failed with.

    Attributes:
        path: Where it was to be saved.
        step: Its step, None if it has none.
    """

    def __init__(self, message: str, *, path: str, step: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.step = step


class ItemError(CheckpointError, RuntimeError):
    """An object that was to be saved or restored raised an error, which is the cause of this one.

    Attributes:
        item: Name of the item.
    """

    def __init__(self, message: str, *, item: str) -> None:
        super().__init__(message)
        self.item = item


class ProcessCountError(CheckpointError, ValueError):
    """An item has one part per process and was saved by another number of processes.

    Attributes:
        saved: How many saved it.
        current: How many there are now.
    """

    def __init__(self, message: str, *, saved: int, current: int) -> None:
        super().__init__(message)
        self.saved = saved
        self.current = current


class ProcessFailedError(CheckpointError, RuntimeError):
    """A process failed in what all do together, and so did it on all others.

    Attributes:
        process: The process that failed first; the message has the text of its error.
    """

    def __init__(self, message: str, *, process: int) -> None:
        super().__init__(message)
        self.process = process


class ProcessTimeoutError(CheckpointError, TimeoutError):
    """Some processes did not come in time to where all were to meet.

    Attributes:
        process: The process that has waited.
        missing: What each process that did not come was last doing.
    """

    def __init__(self, message: str, *, process: int, missing: Mapping[int, str]) -> None:
        super().__init__(message)
        self.process = process
        self.missing = dict(missing)


class MissingPackageError(CheckpointError, ImportError):
    """What was asked for needs a package that is not installed."""


class TransformError(CheckpointError, ValueError):
    """Rules do not fit a checkpoint, a target, or one another."""


class LeafError(CheckpointError, ValueError):
    """Some leaves are at fault.

    Attributes:
        paths: Names of all of them, `params/layer_0/kernel`.
    """

    def __init__(self, message: str, *, paths: Sequence[str]) -> None:
        super().__init__(message)
        self.paths = tuple(paths)


class UnsupportedLeafError(LeafError):
    """Leaves cannot be written, or cannot be restored as asked."""


class NameCollisionError(LeafError):
    """Two leaves would be stored under one name, or a name cannot be stored."""


class TreeMismatchError(LeafError):
    """The target given to a restore differs from the checkpoint."""
