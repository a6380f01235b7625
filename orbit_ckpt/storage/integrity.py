"""The manifest: size and checksum of every file that does not check itself.

OCDBT files and zarr3 chunks carry a crc32c of their own; JSON documents, zarr2 chunks and files of
third parties do not. The manifest covers those, and itself. Checkpoints of other writers have
none; their files are read as they are.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from crc32c import crc32c
from msgspec import Struct, field

from orbit_ckpt.errors import CorruptionError, FormatError, VersionError
from orbit_ckpt.storage.atomic import sync_directory, write_file
from orbit_ckpt.storage.identity import Stamp, stamp_from, stamp_of
from orbit_ckpt.storage.inner_path import InnerFiles, inner_path, read_inner
from orbit_ckpt.storage.layout import (
    COMMIT_MARKER,
    IN_PROGRESS,
    MANIFEST,
    OCDBT_DATA,
    OCDBT_MANIFEST,
)
from orbit_ckpt.storage.store_path import StorePath, map_paths

FORMAT_VERSION = 1
_BLOCK_BYTES = 1 << 22
_OBJECT_BLOCK_BYTES = 1 << 24

OCDBT_FILES = (OCDBT_MANIFEST, f"{OCDBT_DATA}/")
"""Files that check themselves if all arrays of the database are zarr3 with checksums."""

OWN_CHECKSUM = 0x48674BC7
"""crc32c of anything that ends in its own crc32c; tells no two such files apart."""

_NOT_COVERED = (MANIFEST, COMMIT_MARKER, IN_PROGRESS)


class FileRecord(Struct, frozen=True):
    """What a file's contents must be.

    Attributes:
        nbytes: Size.
        crc32c: Castagnoli checksum of the contents; of files that end in their checksum, such as
            zarr3 chunks, that one.
    """

    nbytes: int
    crc32c: int

    @classmethod
    def of(cls, nbytes: int, checksum: int, tail: bytes) -> FileRecord:
        """Return the record of a file.

        Args:
            nbytes: Its size.
            checksum: crc32c of all of it.
            tail: Its last four bytes.
        """
        ends_in_it = checksum == OWN_CHECKSUM
        return cls(nbytes, int.from_bytes(tail, "little") if ends_in_it else checksum)


class Manifest(Struct, frozen=True):
    """Records of the files of one directory.

    Attributes:
        files: Record of every covered file, by path relative to the directory.
        self_checked: Paths, or prefixes that end in `/`, of files that check themselves.
        version: Version of the manifest's form.
    """

    files: Mapping[str, FileRecord] = field(default_factory=dict[str, FileRecord])
    self_checked: Sequence[str] = ()
    version: int = FORMAT_VERSION

    def to_bytes(self) -> bytes:
        """Return the document, which ends in the checksum of what stands before it."""
        body = json.dumps(
            {
                "format_version": self.version,
                "self_checked": list(self.self_checked),
                "files": {path: [r.nbytes, r.crc32c] for path, r in sorted(self.files.items())},
            },
            separators=(",", ":"),
        ).encode()
        return body + b"\n" + f"{crc32c(body):08x}".encode() + b"\n"


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a directory, None if it has none.

    Raises:
        CorruptionError: The manifest is damaged.
        FormatError: It was written by a later version.
    """
    file = directory / MANIFEST
    try:
        data = read_inner(directory, MANIFEST)
    except FileNotFoundError:
        return None
    body, _, tail = data.rstrip(b"\n").rpartition(b"\n")
    if tail != f"{crc32c(body):08x}".encode():
        raise _damaged(file, "its checksum does not match")
    try:
        document = json.loads(body)
        version = int(document["format_version"])
        if version > FORMAT_VERSION:
            raise VersionError(
                f"{file}: format version {version}; this version of orbit_ckpt reads up to "
                f"{FORMAT_VERSION}. Install a newer one."
            )
        files = {path: FileRecord(*record) for path, record in document["files"].items()}
        return Manifest(files, tuple(document["self_checked"]), version)
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{file}: {type(error).__name__}: {error}") from error


def write_manifest(directory: Path, *, self_checked: Sequence[str] = ()) -> None:
    """Record every file below a directory that is not recorded yet.

    Called once by the item that owns the directory and once more for the files around it: what
    an earlier call recorded stays as it is. A subdirectory with a manifest of its own is covered
    by recording that manifest.

    Args:
        directory: Where the files are.
        self_checked: Files to leave out, see `Manifest.self_checked`.
    """
    earlier = read_manifest(directory)
    files = dict(earlier.files) if earlier else {}
    skipped = tuple(self_checked) or (tuple(earlier.self_checked) if earlier else ())
    names, prefixes = set(skipped), tuple(name for name in skipped if name.endswith("/"))
    new = [
        path
        for path in _walk(directory, "")
        if path not in files and path not in names and not path.startswith(prefixes)
    ]
    records = map_paths(_measure, [directory / path for path in new], root=directory)
    files.update(zip(new, records, strict=True))
    file = directory / MANIFEST
    file.unlink(missing_ok=True)
    write_file(file, Manifest(files, skipped).to_bytes())


def forget_files(directory: Path, prefix: str) -> None:
    """Take files out of a manifest that are about to be deleted on purpose.

    Args:
        directory: Where the manifest is; it may have none.
        prefix: What the paths of the files begin with.
    """
    manifest = read_manifest(directory)
    if manifest is None or not any(path.startswith(prefix) for path in manifest.files):
        return
    kept = {path: r for path, r in manifest.files.items() if not path.startswith(prefix)}
    if isinstance(directory, StorePath):  # where an object is replaced in one step
        write_file(directory / MANIFEST, Manifest(kept, manifest.self_checked).to_bytes())
        return
    new = directory / f"{MANIFEST}.new"
    new.unlink(missing_ok=True)
    write_file(new, Manifest(kept, manifest.self_checked).to_bytes())
    new.replace(directory / MANIFEST)
    sync_directory(directory)  # before the files go


class CheckedDirectory:
    """A directory whose files are compared with its manifest as they are read.

    None is read that is outside of it: a name or link that leads there is an `UnsafePathError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = InnerFiles(path)
        self.manifest = read_manifest(path)
        self._verified: dict[str, Stamp] = {}

    def read_bytes(self, name: str) -> bytes | None:
        """Return the contents of a small file, None if there is none and none is recorded.

        Raises:
            CorruptionError: The file differs from its record.
        """
        record = self._record(name)
        try:
            data = read_inner(self.path, name)
        except FileNotFoundError:
            if record is not None:
                raise _damaged(self.path / name, "it is missing") from None
            return None
        if record is not None:
            _compare(self.path / name, FileRecord.of(len(data), crc32c(data), data[-4:]), record)
        return data

    def inner(self, name: str) -> Path:
        """Return the path of something below it, which need not exist.

        Raises:
            UnsafePathError: The name or a link leads outside.
        """
        if isinstance(self.path, StorePath):
            return inner_path(self.path, name)
        return self.files.file(name)

    def has_record(self, name: str) -> bool:
        """Whether the manifest says what a file must be."""
        return self._record(name) is not None

    def recorded_size(self, name: str) -> int | None:
        """Return how many bytes the manifest says a file has, None if it does not say."""
        record = self._record(name)
        return None if record is None else record.nbytes

    def verify(self, name: str) -> None:
        """Compare a file of any size with its record, if it has one; again if it has changed.

        Raises:
            CorruptionError: The file differs from its record.
        """
        record = self._record(name)
        if record is None:
            return
        if name in self._verified and isinstance(self.path, StorePath):
            return  # asking costs a request; what is in a store is not changed in place
        file = self.path / name
        try:
            stamp = self._stamp(name)
            if self._verified.get(name) != stamp:
                _compare(file, _measure(file), record)
                self._verified[name] = stamp
        except FileNotFoundError:
            raise _damaged(file, "it is missing") from None

    def verify_below(self, prefix: str) -> None:
        """Compare all recorded files whose paths begin with a prefix with their records.

        Raises:
            CorruptionError: A file differs from its record.
        """
        for name in self.manifest.files if self.manifest else ():
            if name.startswith(prefix):
                self.verify(name)

    def _stamp(self, name: str) -> Stamp:
        if isinstance(self.path, StorePath):
            return stamp_of(inner_path(self.path, name))
        status = self.files.status(name)
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return stamp_from(status)

    def _record(self, name: str) -> FileRecord | None:
        return self.manifest.files.get(name) if self.manifest else None


def _walk(root: Path, prefix: str) -> Iterator[str]:
    if isinstance(root, StorePath):
        yield from _walk_keys(root.keys_below())
        return
    for entry in sorted(os.scandir(root / prefix), key=lambda e: e.name):
        path = f"{prefix}{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            if path not in _NOT_COVERED:
                yield path
        elif (root / path / MANIFEST).exists():
            yield f"{path}/{MANIFEST}"
        else:
            yield from _walk(root, f"{path}/")


def _walk_keys(keys: Sequence[str]) -> Iterator[str]:
    """Yield what `_walk` would, of a store's keys."""
    folders = {key.removesuffix(MANIFEST) for key in keys if key.endswith(f"/{MANIFEST}")}
    for key in keys:
        ends = [i + 1 for i, letter in enumerate(key) if letter == "/"]
        owner = next((key[:end] for end in ends if key[:end] in folders), None)
        if key == f"{owner}{MANIFEST}" if owner else key not in _NOT_COVERED:
            yield key


def _measure(file: Path) -> FileRecord:
    nbytes = checksum = 0
    tail = b""
    for block in _blocks(file):
        nbytes += len(block)
        checksum = crc32c(block, checksum)
        tail = (tail + block)[-4:] if len(block) < 4 else block[-4:]
    return FileRecord.of(nbytes, checksum, tail)


def _blocks(file: Path) -> Iterator[bytes]:
    if isinstance(file, StorePath):
        yield from file.blocks(_OBJECT_BLOCK_BYTES)
        return
    with open(file, "rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            yield block


def _compare(file: Path, found: FileRecord, expected: FileRecord) -> None:
    if found.nbytes != expected.nbytes:
        raise _damaged(file, f"it has {found.nbytes} bytes, {expected.nbytes} were written")
    if found.crc32c != expected.crc32c:
        raise _damaged(
            file, f"its checksum is {found.crc32c:08x}, {expected.crc32c:08x} was written"
        )


def _damaged(file: Path, what: str) -> CorruptionError:
    return CorruptionError(
        f"{file} is damaged: {what}. Restore an earlier checkpoint or another copy of this one.",
        file=str(file),
        what=what,
    )
