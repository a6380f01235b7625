"""Orbax's classes of temporary paths, over the directories that saves write into.

Where Orbax takes a class that decides how a checkpoint becomes visible, two of them name the modes.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self

from typing_extensions import override

from orbit_ckpt._src.checkpointer.options import FileOptions
from orbit_ckpt._src.errors import CheckpointError, NotSupportedError
from orbit_ckpt._src.metadata.store import MetadataStore
from orbit_ckpt._src.runtime.loop import run_blocking
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.layout import (
    COMMIT_MARKER,
    STEP_METADATA,
    TEMPORARY_SUFFIX,
    is_temporary_name,
)
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.text import warn_set

if TYPE_CHECKING:
    from orbit_ckpt._src.storage.atomic import AtomicDirectory
    from orbit_ckpt._src.storage.objects import ObjectDirectory


class ValidationError(ValueError):
    """A path is not the temporary or final path that was expected."""


class TemporaryPath(Protocol):
    """The directory of a save in progress, and the path at which it will appear."""

    @classmethod
    @abstractmethod
    async def validate(cls, temporary_path: PathLike) -> None:
        """Check that a path is a save in progress.

        Raises:
            ValidationError: It is not.
        """
        ...

    @classmethod
    @abstractmethod
    async def validate_final(cls, final_path: PathLike) -> None:
        """Check that a path is a complete save.

        Raises:
            ValidationError: It is not.
        """
        ...

    @classmethod
    @abstractmethod
    def from_temporary(
        cls,
        temporary_path: PathLike,
        *,
        file_options: FileOptions | None = None,
        snapshot_type: object = None,
    ) -> TemporaryPath:
        """Return an object for an existing temporary path."""
        ...

    @classmethod
    @abstractmethod
    def from_final(
        cls,
        final_path: PathLike,
        *,
        checkpoint_metadata_store: MetadataStore | None = None,
        file_options: FileOptions | None = None,
        snapshot_type: object = None,
    ) -> TemporaryPath:
        """Return an object that can create a save at a path."""
        ...

    @abstractmethod
    def get(self) -> Path:
        """Return the temporary path."""
        ...

    @abstractmethod
    def get_final(self) -> Path:
        """Return the final path."""
        ...

    @abstractmethod
    async def create(self) -> Path:
        """Create the temporary directory."""
        ...

    @abstractmethod
    async def finalize(self) -> None:
        """Make the directory durable and visible at its final path."""
        ...


class _AtomicPath(TemporaryPath):
    """A temporary path in one of the modes in which saves become visible.

    What was created and not finalized is removed by the next save to the path, once this process
    has ended.
    """

    mode: ClassVar[AtomicityMode]

    def __init__(
        self,
        temporary: Path,
        final: Path,
        atomic: AtomicDirectory | ObjectDirectory | None = None,
        *,
        store: MetadataStore | None = None,
    ) -> None:
        self._temporary = temporary
        self._final = final
        self._atomic = atomic
        self._store = store

    @classmethod
    @override
    def from_final(
        cls,
        final_path: PathLike,
        *,
        checkpoint_metadata_store: MetadataStore | None = None,
        file_options: FileOptions | None = None,
        snapshot_type: object = None,
    ) -> Self:
        """Return an object that can create a save at a path.

        Args:
            final_path: Where the save will appear.
            checkpoint_metadata_store: Records the times of the save, if given.
            file_options: Permissions of the directory.
            snapshot_type: Ignored.

        Raises:
            ValueError: The storage does not support the mode.
        """
        _warn_of_snapshot(cls, snapshot_type)
        final = resolve_path(final_path)
        permissions = (file_options or FileOptions()).path_permission_mode
        atomic = directory_of(final).begin_save(
            overwrite=False, mode=cls.mode, permissions=permissions
        )
        return cls(atomic.path, atomic.final, atomic, store=checkpoint_metadata_store)

    @override
    def get(self) -> Path:
        return self._temporary

    @override
    def get_final(self) -> Path:
        return self._final

    @override
    async def create(self) -> Path:
        """Create the temporary directory.

        Raises:
            CheckpointExistsError: The final path exists.
            CheckpointError: The object was made from a temporary path.
        """
        atomic = self._opened("created")
        await run_blocking(atomic.__enter__)
        self._temporary = atomic.path
        if self._store is not None:
            times = {"init_timestamp_nsecs": time.time_ns()}
            self._store.write(self._temporary / STEP_METADATA, times)
        return self._temporary

    @override
    async def finalize(self) -> None:
        """Make the directory durable and visible at its final path.

        Raises:
            CheckpointExistsError: Another writer has created the final path.
            CheckpointError: `create` was not called.
        """
        atomic = self._opened("finalized")

        def commit() -> None:
            if self._store is not None:
                times = {"commit_timestamp_nsecs": time.time_ns()}
                self._store.update(self._temporary / STEP_METADATA, **times)
                self._store.wait_until_finished()
            atomic.commit()

        await run_blocking(commit)

    def _opened(self, done: str) -> AtomicDirectory | ObjectDirectory:
        if self._atomic is None:
            raise CheckpointError(
                f"{self._temporary} belongs to another save and cannot be {done} here. Make a "
                f"temporary path of your own with {type(self).__name__}.from_final()."
            )
        return self._atomic

    @override
    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(tmp={self._temporary.name!r}, final={self._final.name!r}, "
            f"directory={str(self._final.parent)!r})"
        )


class AtomicRenameTemporaryPath(_AtomicPath):
    """A temporary directory that is renamed to its final path."""

    mode = AtomicityMode.ATOMIC_RENAME

    @classmethod
    @override
    def from_temporary(
        cls,
        temporary_path: PathLike,
        *,
        file_options: FileOptions | None = None,
        snapshot_type: object = None,
    ) -> Self:
        """Return an object for an existing temporary path, which knows its final path.

        Raises:
            ValueError: Its name is not that of a temporary path.
        """
        _warn_of_snapshot(cls, snapshot_type)
        path = resolve_path(temporary_path)
        if not is_temporary_name(path.name):
            raise ValueError(
                f"{path} is not a temporary path: its name does not contain {TEMPORARY_SUFFIX!r}. "
                "Give one, or use from_final()."
            )
        return cls(path, path.with_name(path.name.partition(TEMPORARY_SUFFIX)[0]))

    @classmethod
    @override
    async def validate(cls, temporary_path: PathLike) -> None:
        path = resolve_path(temporary_path)
        if not is_temporary_name(path.name):
            raise ValidationError(f"{path}: expected a name with {TEMPORARY_SUFFIX!r}.")
        _check_directory(path)

    @classmethod
    @override
    async def validate_final(cls, final_path: PathLike) -> None:
        path = resolve_path(final_path)
        if is_temporary_name(path.name):
            raise ValidationError(f"{path}: expected a name without {TEMPORARY_SUFFIX!r}.")
        _check_directory(path)


class CommitFileTemporaryPath(_AtomicPath):
    """A final path that is written in place and completed by a marker file."""

    mode = AtomicityMode.COMMIT_FILE

    @classmethod
    @override
    def from_temporary(
        cls,
        temporary_path: PathLike,
        *,
        file_options: FileOptions | None = None,
        snapshot_type: object = None,
    ) -> Self:
        """Return an object for an existing path, which is its own final path."""
        _warn_of_snapshot(cls, snapshot_type)
        path = resolve_path(temporary_path)
        return cls(path, path)

    @classmethod
    @override
    async def validate(cls, temporary_path: PathLike) -> None:
        path = resolve_path(temporary_path)
        if (path / COMMIT_MARKER).exists():
            raise ValidationError(f"{path}: expected a directory without {COMMIT_MARKER}.")
        _check_directory(path)

    @classmethod
    @override
    async def validate_final(cls, final_path: PathLike) -> None:
        path = resolve_path(final_path)
        if not (path / COMMIT_MARKER).exists():
            raise ValidationError(f"{path}: expected a directory with {COMMIT_MARKER}.")
        _check_directory(path)


class ReadOnlyTemporaryPath(TemporaryPath):
    """The two paths of a save, to be sent to processes that only read them."""

    def __init__(self, *, temporary_path: PathLike, final_path: PathLike) -> None:
        self._temporary = resolve_path(temporary_path)
        self._final = resolve_path(final_path)

    @classmethod
    def from_paths(cls, *, temporary_path: PathLike, final_path: PathLike) -> Self:
        """Return an object with these paths."""
        return cls(temporary_path=temporary_path, final_path=final_path)

    def to_bytes(self) -> bytes:
        """Return both paths as JSON."""
        paths = {"tmp_path": str(self._temporary), "final_path": str(self._final)}
        return json.dumps(paths).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the object that `to_bytes` wrote."""
        paths = json.loads(data)
        return cls(temporary_path=paths["tmp_path"], final_path=paths["final_path"])

    @override
    def get(self) -> Path:
        return self._temporary

    @override
    def get_final(self) -> Path:
        return self._final

    @classmethod
    @override
    async def validate(cls, temporary_path: PathLike) -> NoReturn:
        raise _read_only()

    @classmethod
    @override
    async def validate_final(cls, final_path: PathLike) -> NoReturn:
        raise _read_only()

    @classmethod
    @override
    def from_temporary(cls, temporary_path: PathLike, **options: Any) -> NoReturn:
        raise _read_only()

    @classmethod
    @override
    def from_final(cls, final_path: PathLike, **options: Any) -> NoReturn:
        raise _read_only()

    @override
    async def create(self) -> NoReturn:
        raise _read_only()

    @override
    async def finalize(self) -> NoReturn:
        raise _read_only()


def _check_directory(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        raise ValidationError(f"{path}: expected a directory, and not a link to one.")


def _warn_of_snapshot(kind: type, snapshot_type: object) -> None:
    why = "a save is written into a directory of its own"
    warn_set(kind.__qualname__, {"snapshot_type": (snapshot_type, None, why)})


def _read_only() -> NotSupportedError:
    return NotSupportedError(
        "A ReadOnlyTemporaryPath only holds two paths. Use AtomicRenameTemporaryPath or "
        "CommitFileTemporaryPath to create and finalize one."
    )
