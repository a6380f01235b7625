"""The manifest: the expected state of every file of a directory.

It records size and checksum of files, and of a database the checksum of every value and of the
index, so that data of another save is detected even if its own checksums are right. Checkpoints of
other writers have none; their files are read as they are.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import CorruptionError, UnsafePathError
from orbit_ckpt._src.storage.durable import replace_file, write_file
from orbit_ckpt._src.storage.fingerprint import Fingerprint, fingerprint_from, fingerprint_of
from orbit_ckpt._src.storage.inner_path import InnerFiles, inner_path, is_inner_name, read_inner
from orbit_ckpt._src.storage.layout import (
    COMMIT_MARKER,
    COMMITTED,
    IN_PROGRESS,
    MANIFEST,
    OCDBT_MANIFEST,
    RECORDED_NOTE,
    STEP_METADATA,
)
from orbit_ckpt._src.storage.manifest import FileRecord, Manifest, damaged_file
from orbit_ckpt._src.storage.store_path import StorePath, file_size, map_paths, read_blocks
from orbit_ckpt._src.storage.store_view import viewing

_OBJECT_BLOCK_BYTES = 1 << 24

_ITEM_DEPTH = 2
"""Depth of the parts of items below a checkpoint: those of a random key are inside the item."""

_NEW_MANIFEST = f"{MANIFEST}.new"
_NOT_COVERED = (MANIFEST, _NEW_MANIFEST, COMMIT_MARKER, IN_PROGRESS)

_logger = logging.getLogger(__name__)


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a directory, None if it has none.

    Raises:
        CorruptionError: The manifest is damaged.
        FormatError: A later version wrote it.
    """
    data = _contents(directory)
    return None if data is None else Manifest.from_bytes(data, f"{directory}/{MANIFEST}")


def _contents(directory: Path) -> bytes | None:
    try:
        return read_inner(directory, MANIFEST)
    except FileNotFoundError:
        return None


def write_manifest(directory: Path, *, known: Manifest | None = None, below: str = "") -> None:
    """Record every file below a directory that is not recorded yet.

    Called once by the item that owns the directory and once more for the files around it: existing
    records do not change. A subdirectory with a manifest of its own is covered by recording that
    manifest.

    Args:
        directory: The directory of the files.
        known: Records of some of them, known without reading, if no manifest exists yet.
        below: Prefix of the paths to record.
    """
    with viewing([directory], beside=False):
        recorded = read_manifest(directory)
        earlier = recorded or known or Manifest()
        others = _records_of_others(directory, earlier, below)
        if others or recorded is None:
            replace_manifest(directory, _extended(earlier, others))


def renew_manifest(directory: Path) -> None:
    """Record all files of a directory anew after a deliberate change.

    The record of its database stays if `manifest.ocdbt` does, because any change of a database
    changes that file.

    Args:
        directory: The directory of the files; it may have no manifest.
    """
    checked = CheckedDirectory(directory)
    if checked.manifest is None:
        return
    known = Manifest()
    if checked.manifest.database is not None:
        with contextlib.suppress(CorruptionError):
            checked.verify(OCDBT_MANIFEST)
            known = structs.replace(checked.manifest, files={})
    replace_manifest(directory, _extended(known, _records_of_others(directory, known, "")))


def _records_of_others(directory: Path, earlier: Manifest, below: str) -> dict[str, FileRecord]:
    """Return the records of files that a manifest does not have."""
    found = [path for path in _unrecorded(directory, earlier) if path.startswith(below)]
    new = list(filter(is_inner_name, found))  # a store may have keys that are not valid paths
    records = map_paths(measure_file, [directory / path for path in new], root=directory)
    return dict(zip(new, records, strict=True))


def _extended(manifest: Manifest, files: Mapping[str, FileRecord]) -> Manifest:
    return structs.replace(manifest, files={**manifest.files, **files})


def replace_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest of a directory atomically."""
    file = directory / MANIFEST
    if isinstance(directory, StorePath) or not file.exists():
        write_file(file, manifest.to_bytes())
        return
    replace_file(file, manifest.to_bytes(), directory / _NEW_MANIFEST)


class CheckedDirectory:
    """A directory whose files are compared with its manifest as they are read.

    A name or link that leads outside raises `UnsafePathError`.
    """

    def __init__(self, path: Path | str) -> None:
        self.files = InnerFiles(path)
        self.path = self.files.root
        data = self._contents(MANIFEST)
        self.manifest = None if data is None else Manifest.from_bytes(data, f"{path}/{MANIFEST}")
        self._own_record = None if data is None else FileRecord.of_contents(data)
        self._verified: dict[str, Fingerprint] = {}

    def check_origin(self) -> None:
        """Check that an item was saved with its enclosing checkpoint.

        Logs a missing manifest.

        Raises:
            CorruptionError: The item belongs to another checkpoint.
        """
        if self.has_record(STEP_METADATA):
            return  # a checkpoint, not an item of one
        own = self._own_record
        around = self._manifest_around()
        name, recorded = around or ("", None)
        if own is None and (recorded is not None or has_lost_manifest(self.path)):
            _logger.warning(
                "%s: %s is missing: nothing but the checksums of its chunks is compared",
                self.path,
                MANIFEST,
            )
        elif own is not None and recorded not in (None, own):
            raise damaged_file(
                self.path / MANIFEST,
                f"it is not the one that {name} records; the item is of another checkpoint, or was "
                "saved anew",
            )

    def _manifest_around(self) -> tuple[str, FileRecord | None] | None:
        """Return the manifest of the enclosing checkpoint, if any, and its record of this one's."""
        if self._own_record is None and isinstance(self.path, StorePath):
            return None  # asking costs a request
        directory, name = self.path, MANIFEST
        for _ in range(_ITEM_DEPTH):
            if isinstance(directory, StorePath) and not directory.key:
                return None  # a bucket
            directory, name = directory.parent, f"{directory.name}/{name}"
            around = read_manifest(directory)
            if around is not None:
                return f"{directory / MANIFEST}", around.files.get(name)
        return None

    def read_bytes(self, name: str) -> bytes | None:
        """Return the contents of a small file, None if it neither exists nor is recorded.

        Raises:
            CorruptionError: The file differs from its record.
        """
        record = self._record(name)
        try:
            data = self._contents(name)
        except IsADirectoryError:
            raise damaged_file(self.path / name, "it is a directory") from None
        if record is not None:
            if data is None:
                raise damaged_file(self.path / name, "it is missing")
            _compare(self.path, name, FileRecord.of_contents(data), record)
        return data

    def inner(self, name: str) -> Path:
        """Return a path below the directory, which need not exist.

        Raises:
            UnsafePathError: The name or a link leads outside.
        """
        if isinstance(self.path, StorePath):
            return inner_path(self.path, name)
        return self.files.file(name)

    def has_record(self, name: str) -> bool:
        """Return whether the manifest records a file."""
        return self._record(name) is not None

    def recorded_size(self, name: str) -> int | None:
        """Return the recorded size of a file in bytes, None if not recorded."""
        record = self._record(name)
        return None if record is None else record.nbytes

    def verify(self, name: str) -> None:
        """Compare a file of any size with its record, if any; repeat if it has changed.

        Raises:
            CorruptionError: The file differs from its record.
        """
        record = self._record(name)
        if record is None:
            return
        if name in self._verified and isinstance(self.path, StorePath):
            return  # objects are not changed in place, and asking costs a request
        file = self.path / name
        try:
            fingerprint = self.fingerprint(name)
            if self._verified.get(name) != fingerprint:
                self.compare(name, measure_file(file), fingerprint)
        except FileNotFoundError:
            raise damaged_file(file, "it is missing") from None

    def compare(self, name: str, found: FileRecord, fingerprint: Fingerprint) -> None:
        """Compare what was measured of a recorded file with its record.

        Args:
            name: The file.
            found: The measured size and checksum.
            fingerprint: Its fingerprint before it was measured.

        Raises:
            CorruptionError: They differ.
        """
        record = self._record(name)
        if record is not None:
            _compare(self.path, name, found, record)
            self._verified[name] = fingerprint

    def verify_below(self, prefix: str) -> None:
        """Compare all recorded files whose paths begin with a prefix with their records.

        Raises:
            CorruptionError: A file differs from its record.
        """
        for name in self.manifest.files if self.manifest else ():
            if name.startswith(prefix):
                self.verify(name)

    def verify_outside(self, directories: Container[str]) -> None:
        """Compare all recorded files with their records, except those in some directories.

        Args:
            directories: Names of directories right below this one.

        Raises:
            CorruptionError: A file differs from its record.
        """
        for name in self.manifest.files if self.manifest else ():
            top, separator, _ = name.partition("/")
            if not (separator and top in directories):
                self.verify(name)

    def check_database_files(self) -> list[CorruptionError]:
        """Return the size mismatches of a database's data files.

        Their contents are compared value by value, and the index node by node, as they are read.
        """
        errors: list[CorruptionError] = []
        database = self.manifest.database if self.manifest else None
        for name, nbytes in database.files.items() if database else ():
            file = self.path / name
            try:
                found = file_size(self.inner(name), nbytes)
            except FileNotFoundError:
                errors.append(damaged_file(file, "it is missing"))
            except UnsafePathError as error:
                errors.append(error)
            else:
                if found != nbytes:
                    what = f"it has {found} bytes, {nbytes} were written"
                    errors.append(damaged_file(file, what))
        return errors

    def unrecorded(self) -> list[str]:
        """Return the files that the existing manifest does not record."""
        return _unrecorded(self.path, self.manifest or Manifest())

    def _contents(self, name: str) -> bytes | None:
        if isinstance(self.path, StorePath):
            with contextlib.suppress(FileNotFoundError):
                return read_inner(self.path, name)
            return None
        return self.files.read_bytes(name)

    def fingerprint(self, name: str) -> Fingerprint:
        """Return the fingerprint of a file.

        Raises:
            FileNotFoundError: It does not exist.
            UnsafePathError: The name or a link leads outside.
        """
        if isinstance(self.path, StorePath):
            return fingerprint_of(inner_path(self.path, name))
        status = self.files.status(name)
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return fingerprint_from(status)

    def _record(self, name: str) -> FileRecord | None:
        return self.manifest.files.get(name) if self.manifest else None


def has_lost_manifest(directory: Path) -> bool:
    """Return whether the manifest is missing but existed when the checkpoint was committed."""
    try:
        marker = read_inner(directory, COMMIT_MARKER)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnsafePathError):
        return False
    return RECORDED_NOTE.encode() in marker and not (directory / MANIFEST).is_file()


def is_marker_text(data: bytes) -> bool:
    """Return whether a commit marker has the content that saves write.

    The path in it is not compared: a checkpoint may have been moved.
    """
    return data.startswith(COMMITTED.encode()) and b"\0" not in data


def open_checked(directory: Path | str) -> CheckedDirectory:
    """Open a directory to restore from; see `CheckedDirectory.check_origin`.

    Raises:
        CorruptionError: The manifest is damaged, or of another checkpoint.
        FormatError: A later version wrote the manifest.
    """
    checked = CheckedDirectory(directory)
    checked.check_origin()
    return checked


def _unrecorded(directory: Path, manifest: Manifest) -> list[str]:
    names = {*manifest.files, *manifest.self_checked}
    prefixes = tuple(name for name in manifest.self_checked if name.endswith("/"))
    paths = _walk(directory, "")
    return [path for path in paths if path not in names and not path.startswith(prefixes)]


def _walk(root: Path, prefix: str) -> Iterator[str]:
    if isinstance(root, StorePath):
        yield from _walk_keys(root.keys_below())
        return
    if prefix and (root / prefix / MANIFEST).exists():
        yield f"{prefix}{MANIFEST}"
        return

    def walk_below(folder: str) -> list[str]:
        return list(_walk(root, f"{prefix}{folder}/"))

    entries = sorted(os.scandir(root / prefix), key=lambda e: e.name)
    folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    below = iter(map_paths(walk_below, folders, root=root))
    for entry in entries:
        path = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from next(below)
        elif path not in _NOT_COVERED:
            yield path


def _walk_keys(keys: Sequence[str]) -> Iterator[str]:
    """Yield what `_walk` yields, from a store's keys."""
    folders = {key.removesuffix(MANIFEST) for key in keys if key.endswith(f"/{MANIFEST}")}
    for key in keys:
        ends = [i + 1 for i, letter in enumerate(key) if letter == "/"]
        owner = next((key[:end] for end in ends if key[:end] in folders), None)
        if key == f"{owner}{MANIFEST}" if owner else key not in _NOT_COVERED:
            yield key


def measure_file(file: Path) -> FileRecord:
    """Return size and checksum of a file."""
    nbytes = checksum = 0
    tail = b""
    for block in read_blocks(file, _OBJECT_BLOCK_BYTES):
        nbytes += len(block)
        checksum = crc32c(block, checksum)
        tail = (tail + block)[-4:] if len(block) < 4 else block[-4:]
    return FileRecord.of(nbytes, checksum, tail)


def _compare(directory: Path, name: str, found: FileRecord, expected: FileRecord) -> None:
    if found.nbytes != expected.nbytes:
        what = f"it has {found.nbytes} bytes, {expected.nbytes} were written"
        raise damaged_file(directory / name, what)
    if found.crc32c != expected.crc32c:
        what = f"its checksum is {found.crc32c:08x}, {expected.crc32c:08x} was written"
        raise damaged_file(directory / name, what)
