"""Every error orbit_ckpt raises on purpose.

    CheckpointError
    ├── CheckpointNotFoundError      (FileNotFoundError)  nothing restorable at a path
    │   ├── StepNotFoundError        (ValueError)  a run has no such step, or none at all
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
    ├── WorkerLostError              (RuntimeError)  a worker of an executor ended early
    ├── TransformError               (ValueError)  rules do not fit a checkpoint or a target
    ├── MissingPackageError          (ImportError)   an optional package is not installed
    ├── AlreadyImportedError         (ImportError)   Orbax was imported before its replacement
    ├── NotSupportedError            (NotImplementedError)  a feature that only Orbax has
    └── LeafError                    (ValueError)  some leaves are at fault
        ├── UnsupportedLeafError     values no type handler accepts
        ├── NameCollisionError       leaves that would share a storage name
        └── TreeMismatchError        target and checkpoint differ

Bad arguments raise `ValueError` or `TypeError`. A message says where, what was found, what was
expected and what to do. The built-in base classes are those that Orbax raises for the same mistake,
so that `except ValueError` in existing scripts keeps working.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing_extensions import override

from orbit_ckpt._src.text import visible

TROUBLESHOOTING = "https://orbit-ckpt.github.io/orbit_ckpt/troubleshooting/"


class CheckpointError(Exception):
    """Root of all errors raised by orbit_ckpt.

    Errors and their notes escape characters that are not printable, because names in a checkpoint
    could otherwise control the terminal that shows them. A traceback ends with a note that links
    the section about the error; `str` of the error is the message alone.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        kind = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        self.__notes__ = [f"See {TROUBLESHOOTING}#{kind.__name__}"]

    @override
    def __str__(self) -> str:
        # `KeyError`'s puts a message in quotes
        return visible(str(self.args[0]) if len(self.args) == 1 else super().__str__())

    @override
    def add_note(self, note: str, /) -> None:
        """Add a note, with unprintable characters escaped, before the link."""
        self.__notes__.insert(len(self.__notes__) - 1, visible(note))


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint, or no restorable item, at a path."""


class StepNotFoundError(CheckpointNotFoundError, ValueError):
    """A run has no such step, or none at all."""


class ItemNotFoundError(CheckpointNotFoundError, KeyError):
    """A checkpoint has no such item."""


class CheckpointExistsError(CheckpointError, FileExistsError, ValueError):
    """The destination of a save exists, and overwriting was not requested."""


class StepAlreadyExistsError(CheckpointExistsError):
    """A manager has already saved that step."""


class IncompleteCheckpointError(CheckpointError, ValueError):
    """A directory holds a save that was never committed."""


class FormatError(CheckpointError, ValueError):
    """A metadata document is invalid, or has an unknown version."""


class VersionError(FormatError):
    """A checkpoint has a newer version or an unsupported variant of its format.

    It is not necessarily damaged.
    """


def check_version(where: str, version: int, newest: int) -> None:
    """Check that a document of this library is not from a newer release.

    Raises:
        VersionError: It is.
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
        what: What is wrong with them, None if only the message says so.
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
    """A name or link in a checkpoint leads outside it, and is not followed."""


class StorageError(CheckpointError, OSError):
    """The storage failed, for example because it is full or not writable."""


class BackgroundSaveError(CheckpointError, RuntimeError):
    """A background save failed; its cause is the original error.

    Attributes:
        path: The destination of the save.
        step: Its step, None if it has none.
    """

    def __init__(self, message: str, *, path: str, step: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.step = step


class ItemError(CheckpointError, RuntimeError):
    """An object being saved or restored raised an error, which is the cause of this one.

    Attributes:
        item: Name of the item.
    """

    def __init__(self, message: str, *, item: str) -> None:
        super().__init__(message)
        self.item = item


class ProcessCountError(CheckpointError, ValueError):
    """An item has one part per process and was saved by another number of processes.

    Attributes:
        saved: Number of processes that saved it.
        current: Number of processes now.
    """

    def __init__(self, message: str, *, saved: int, current: int) -> None:
        super().__init__(message)
        self.saved = saved
        self.current = current


class ProcessFailedError(CheckpointError, RuntimeError):
    """A process failed; the shared operation was aborted on all.

    Attributes:
        process: The process that failed first; the message has the text of its error.
    """

    def __init__(self, message: str, *, process: int) -> None:
        super().__init__(message)
        self.process = process


class ProcessTimeoutError(CheckpointError, TimeoutError):
    """Some processes did not join a rendezvous in time.

    Attributes:
        process: The process that waited.
        missing: The last known activity of each missing process.
    """

    def __init__(self, message: str, *, process: int, missing: Mapping[int, str]) -> None:
        super().__init__(message)
        self.process = process
        self.missing = dict(missing)


class WorkerLostError(CheckpointError, RuntimeError):
    """A worker of an executor ended early, and the executor does not repeat its work."""


class MissingPackageError(CheckpointError, ImportError):
    """A feature needs a package that is not installed."""


class AlreadyImportedError(CheckpointError, ImportError):
    """Orbax is already imported, so this process can no longer replace it."""


class PluginConflictError(CheckpointError, RuntimeError):
    """Several installed plug-ins claim the same type or name."""


class NotSupportedError(CheckpointError, NotImplementedError):
    """Only Orbax has this feature; the message names an alternative."""


class TransformError(CheckpointError, ValueError):
    """Rules do not fit a checkpoint, a target, or one another."""


class LeafError(CheckpointError, ValueError):
    """Some leaves are at fault.

    Attributes:
        paths: Their names, such as `params/layer_0/kernel`.
    """

    def __init__(self, message: str, *, paths: Sequence[str]) -> None:
        super().__init__(message)
        self.paths = tuple(paths)


class UnsupportedLeafError(LeafError):
    """Leaves cannot be saved, or cannot be restored as requested."""


class NameCollisionError(LeafError):
    """Two leaves would be stored under one name, or a name cannot be stored."""


class TreeMismatchError(LeafError):
    """The target given to a restore differs from the checkpoint."""
