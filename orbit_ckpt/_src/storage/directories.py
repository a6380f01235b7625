"""Directories in an object store; `directory_of` returns the directory of a path."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import (
    CheckpointNotFoundError,
    IncompleteCheckpointError,
    StorageError,
    UnsafePathError,
)
from orbit_ckpt._src.storage.atomic import AtomicityMode, is_in_progress
from orbit_ckpt._src.storage.directory import Directory, Entry
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.fingerprint import Fingerprint
from orbit_ckpt._src.storage.inner_path import check_name
from orbit_ckpt._src.storage.layout import (
    AGGREGATE,
    COMMIT_MARKER,
    IN_PROGRESS,
    OCDBT_MANIFEST,
    RUN_METADATA,
    STEP_METADATA,
    TREE_METADATA,
    is_temporary_name,
)
from orbit_ckpt._src.storage.local_directory import LocalDirectory
from orbit_ckpt._src.storage.object_write import NewObject
from orbit_ckpt._src.storage.objects import (
    ObjectDirectory,
    is_committed,
    is_half_removed,
    remove_checkpoint,
    withdraw,
)
from orbit_ckpt._src.storage.path import explain_no_checkpoint
from orbit_ckpt._src.storage.store_path import StorePath, map_requests, read_blocks
from orbit_ckpt._src.text import visible

_CHECKPOINT_FILES = frozenset({STEP_METADATA, TREE_METADATA, OCDBT_MANIFEST})
"""Names that other programs, who write no marker, do not use."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """An object, or a prefix of objects, found in a directory of a store."""

    path: StorePath
    is_prefix: bool

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.name

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - os.DirEntry's signature
        """Return whether it is a prefix of objects."""
        return self.is_prefix

    def is_symlink(self) -> bool:
        """Return False: stores have no links."""
        return False


class StoreDirectory(Directory):
    """A directory in an object store: the objects below a prefix."""

    has_rename = False
    has_local_files = False
    has_markers = True
    knows_sizes = False

    def __init__(self, path: StorePath) -> None:
        self.path = path
        self._root = path

    @override
    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, StorageError)

    @override
    def entries(self) -> list[Entry]:
        objects, directories = self._root.bucket.list_directory(self._root.prefix)
        found = [*((name, False) for name in objects), *((name, True) for name in directories)]
        # one name may be of both kinds
        return [StoreEntry(self._root / name, is_prefix) for name, is_prefix in sorted(found)]

    @override
    def subdirectories(self) -> list[str]:
        return self._root.directories()

    @override
    def subdirectories_with(self, file: str, names: Iterable[str]) -> list[str]:
        candidates = list(names)
        has = map_requests(lambda name: (self._root / name / file).is_file(), candidates)
        return [name for name, is_there in zip(candidates, has, strict=True) if is_there]

    @override
    def find_in_children(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        found = [key.partition("/") for key in self._root.keys_below()]
        for name in names:
            yield from ((folder, name) for folder, _, rest in found if rest == name)

    @override
    def find_below(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        for key in self._root.keys_below():
            folder, _, name = key.rpartition("/")
            if folder and name in names:
                yield folder, name

    @override
    def files_below(self) -> list[str]:
        return self._root.keys_below()

    @override
    def files_to_copy(self, *, allow_linked_files: bool) -> dict[str, int]:
        keys = [key for key in self._root.keys_below() if key not in {COMMIT_MARKER, IN_PROGRESS}]
        for key in keys:
            check_name(key, str(self._root))
        return dict.fromkeys(keys, 0)

    @override
    def nbytes(self) -> int | None:
        return None

    @override
    def modified_ns(self) -> int | None:
        return None

    @override
    def fingerprints(self) -> dict[Path, Fingerprint] | None:
        return None

    @override
    def follows(self, name: str) -> bool:
        return True

    @override
    def check_links(self, names: Iterable[str], *, allow_linked_files: bool) -> None:
        pass

    @override
    def refused_files(self, *, allow_linked_files: bool) -> list[UnsafePathError]:
        return []

    @override
    def is_unfinished(self) -> bool:
        # with a marker it is a committed checkpoint
        has_begun = is_temporary_name(self._root.name) or is_in_progress(self._root)
        return has_begun and not self.is_committed()

    @override
    def is_committed(self) -> bool:
        return is_committed(self._root)

    @override
    def check_complete(self, *, needs_marker: bool = False) -> None:
        path = self._root
        if is_committed(path):
            return
        names = path.objects()
        is_tree = COMMIT_MARKER in names or not _CHECKPOINT_FILES.isdisjoint(names)
        if IN_PROGRESS in names or is_tree:
            raise IncompleteCheckpointError(
                f"Found incomplete checkpoint at {path}: there is no {COMMIT_MARKER}, so the save "
                "or copy that wrote it did not finish. Restore an earlier one; its objects can "
                f"be deleted. If you know it to be complete, put an empty {COMMIT_MARKER} there."
            )
        raise CheckpointNotFoundError(
            explain_no_checkpoint(path, "Give the URL that was saved to.")
        )

    @override
    def unfinished_below(
        self, known: Container[str], is_temporary: Callable[[str], bool]
    ) -> list[str]:
        keys = set(self._root.keys_below())
        begun = {key.partition("/")[0] for key in keys if key.count("/") == 1}
        return sorted(
            name
            for name in begun
            if f"{name}/{IN_PROGRESS}" in keys and f"{name}/{COMMIT_MARKER}" not in keys
        )

    @override
    def begin_save(
        self, *, overwrite: bool, mode: AtomicityMode, permissions: int | None = None
    ) -> ObjectDirectory:
        if mode is AtomicityMode.ATOMIC_RENAME:
            raise ValueError(
                f"{self._root}: object stores have no rename; use AtomicityMode.AUTO or "
                "COMMIT_FILE."
            )
        return ObjectDirectory(self._root, overwrite=overwrite)

    @override
    def create_document(self, folder: str, name: str, data: bytes) -> None:
        write_file(self._root / folder / name, data)

    @override
    def copy_file(self, source: Path, name: str, advance: Callable[[int], object]) -> int:
        checksum = 0
        with NewObject(self._root / name) as file:
            for block in read_blocks(source):
                file.write(block)
                checksum = crc32c(block, checksum)
                advance(len(block))
        return checksum

    @override
    def sync_files(self) -> None:
        pass

    @override
    def hide(self, root: Path, subdirectory: str | None) -> Path | None:
        return self._root if withdraw(self._root) else None

    @override
    def sync_hidden(self, original: Path) -> None:
        pass

    @override
    def delete_hidden(self) -> None:
        if not is_committed(self._root):  # else another save has replaced it
            remove_checkpoint(self._root)

    @override
    def sweep(self, is_step: Callable[[str], bool], *, everything: bool) -> None:
        keys = set(self._root.keys_below())  # one listing spares a request per step
        names = {key.partition("/")[0] for key in keys if "/" in key}
        for name in sorted(filter(is_step, names)):
            path = self._root / name
            is_foreign = any(f"{name}/{file}" in keys for file in (AGGREGATE, RUN_METADATA))
            unmarked = everything and not is_foreign and f"{name}/{COMMIT_MARKER}" not in keys
            begun = f"{name}/{IN_PROGRESS}" in keys
            if (unmarked and not is_committed(path)) or (begun and is_half_removed(path)):
                _logger.info("Removing %s, left behind", visible(str(path)))
                remove_checkpoint(path)


def directory_of(path: Path) -> Directory:
    """Return the directory at a path; makes no request."""
    return StoreDirectory(path) if isinstance(path, StorePath) else LocalDirectory(path)
