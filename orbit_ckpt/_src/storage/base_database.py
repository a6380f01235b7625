"""The database of an earlier step, of which a save refers to what has not changed.

Its data files are linked into the new step, so that nothing there refers out of the step's
directory. A link is never written to: a save writes to files that it creates.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import numpy as np

from orbit_ckpt._src.arrays.memory import aligned_empty, byte_view
from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import CheckpointError, CorruptionError, FormatError
from orbit_ckpt._src.storage.codec import CHECKSUM_BYTES, NOT_THE_WRITTEN, decode_chunk
from orbit_ckpt._src.storage.digests import Digests, digest_of
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.layout import DIGESTS, OCDBT_DATA, OCDBT_MANIFEST, Extent, Value
from orbit_ckpt._src.storage.manifest import OWN_CHECKSUM, DatabaseRecord, Manifest
from orbit_ckpt._src.storage.ocdbt import databases_below, read_index
from orbit_ckpt._src.storage.read_shares import in_requests
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.storage.system import clone_file, sync_file
from orbit_ckpt._src.storage.value_read import ValueReader
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt._src.storage.zarr import ZarrArray

_CANNOT_LINK = {errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP}

_MIN_LIVE = 0.5
"""Of a file that holds less than this part of live bytes, these are written anew."""


class BaseError(Exception):
    """An earlier step cannot be the base of a save; says why."""


class BaseDatabase:
    """The database of an earlier step.

    Attributes:
        path: Its directory.
        files: Sizes of its data files, or of those in the part that is used.
        generation: See `Digests`.
        record: What its manifest records of it.
    """

    def __init__(self, path: Path, part: str = "", parts: Sequence[str] = ()) -> None:
        """Read the index and the digests.

        Args:
            path: Its directory.
            part: The directory in it whose data files are used; empty for all files.
            parts: The directories of processes that it must consist of, if it is used in parts.

        Raises:
            BaseError: It cannot be read, its chunks have no recorded checksums, or it consists of
                other parts.
        """
        self.path = path
        try:
            self.record, self._values, digests = _read(path)
        except (CheckpointError, OSError, ValueError) as error:
            raise BaseError(f"it cannot be read: {error}") from error
        self._digests = digests.by_key
        self.generation = digests.generation
        if parts:
            _check_parts(path, parts)
        files, start = self.record.files, f"{part}/" if part else ""
        self.files = {n.removeprefix(start): s for n, s in files.items() if n.startswith(start)}
        self._sizes = {f"{path}/{start}{name}": size for name, size in self.files.items()}
        self._linked: dict[str, str] = {}
        self._root = path
        self._kept: dict[str, Extent] = {}

    def link_into(self, root: Path) -> None:
        """Link the data files into a new database, so that they outlive this one.

        Args:
            root: The root of the new database.

        Raises:
            BaseError: They cannot be linked.
        """
        self._root = root
        folder = root / OCDBT_DATA
        folder.mkdir(parents=True, exist_ok=True)
        for file, size in self._sizes.items():
            name = f"{OCDBT_DATA}/{PurePath(file).name}"
            try:
                _link(file, root / name)
                self._linked[file] = name
                found = (root / name).stat().st_size
            except OSError as error:
                raise BaseError(f"its files cannot be linked: {error}") from error
            if found != size:
                raise BaseError(f"{file} is damaged: it has {found} bytes instead of {size}")

    def has_document(self, key: str, document: bytes) -> bool:
        """Return whether an array has the given metadata document here."""
        return self._values.get(key) == document

    def keep(self, key: str, layout: ZarrArray, digest: bytes) -> bool:
        """Keep a chunk for the new database if it has a digest; return whether it has.

        Args:
            key: Its key.
            layout: How its array is stored, here and in the new database.
            digest: The digest.
        """
        value = self._values.get(key)
        if not isinstance(value, Extent) or value.file not in self._linked:
            return False
        known = self._digests.get(key.encode())
        if known is None:
            known = _digest_by_reading(layout, self._in_link(value))
        if known != digest:
            return False
        self._kept[key] = value
        return True

    def digest(self, key: str) -> bytes | None:
        """Return the recorded digest of a chunk, None if there is none."""
        return self._digests.get(key.encode())

    def refer_from(self, writer: DatabaseWriter, root: Path) -> tuple[int, int]:
        """Add the kept chunks to the new database, and remove the links that it does not need.

        Returns:
            The bytes of the chunks that it refers to, and of those that are copied because little
            else of their file is live.

        Raises:
            CorruptionError: A chunk to copy is damaged.
        """
        live: Counter[str] = Counter()
        for value in set(self._kept.values()):  # tied arrays have one place
            live[value.file] += value.length
        shared = {f for f, nbytes in live.items() if nbytes >= _MIN_LIVE * self._sizes[f]}
        copied = {
            key: self._in_link(value)
            for key, value in self._kept.items()
            if value.file not in shared
        }
        writer.begin_files()  # what has not changed is apart from what has
        ncopied = _copy(copied, writer)
        referred = {
            key: Extent(self._linked[value.file], value.offset, value.length, value.checksum)
            for key, value in self._kept.items()
            if value.file in shared
        }
        for file, name in self._linked.items():
            if file in shared:
                sync_file(root / name)  # another program may have made the base, by a copy
            else:
                (root / name).unlink()
        sizes = {self._linked[file]: self._sizes[file] for file in shared}
        writer.refer(referred, Manifest(database=DatabaseRecord(0, b"", sizes)))
        return sum(live[file] for file in shared), ncopied

    def _in_link(self, value: Extent) -> Extent:
        """Return the place of a value in the linked file, which nobody else removes."""
        file = f"{self._root}/{self._linked[value.file]}"
        return Extent(file, value.offset, value.length, value.checksum)

    def unlink(self, root: Path) -> None:
        """Remove all links, for a save that refers to nothing."""
        for name in self._linked.values():
            (root / name).unlink(missing_ok=True)
        self._linked.clear()


def read_digests(path: Path) -> tuple[Mapping[str, Value], Mapping[bytes, bytes]]:
    """Return the values of a database, and the digests of those that have one, by key.

    Raises:
        BaseError: It cannot be read.
    """
    try:
        _, values, digests = _read(path)
    except (CheckpointError, OSError, ValueError) as error:
        raise BaseError(f"it cannot be read: {error}") from error
    return values, digests.by_key


def _read(path: Path) -> tuple[DatabaseRecord, dict[str, Value], Digests]:
    if isinstance(path, StorePath):
        raise FormatError("objects of a store cannot be linked")
    directory = CheckedDirectory(path)
    record = directory.manifest.database if directory.manifest else None
    if record is None or not record.values:
        raise FormatError("nothing records the checksums of its chunks")
    root = directory.read_bytes(OCDBT_MANIFEST)
    values = read_index(directory.path, record, manifest=root)
    data = directory.read_bytes(DIGESTS)
    if data is None:  # not saved incrementally
        return record, values, Digests({})
    keys = sorted(key.encode() for key, value in values.items() if isinstance(value, Extent))
    return record, values, Digests.decode(data, record.index, keys, f"{path}/{DIGESTS}")


def _check_parts(path: Path, parts: Sequence[str]) -> None:
    """Check that as many processes saved a database as save now.

    Raises:
        BaseError: Others did.
    """
    try:
        found = databases_below(path)
    except OSError as error:
        raise BaseError(f"it cannot be read: {error}") from error
    if set(found) != set(parts):
        count = len(found) or 1
        processes = "1 process" if count == 1 else f"{count} processes"
        raise BaseError(f"it was saved by {processes}, not by {len(parts)}")


def _digest_by_reading(layout: ZarrArray, value: Extent) -> bytes | None:
    """Return the digest of a stored chunk, None if it is damaged or cannot be read."""
    elements = byte_view(aligned_empty((layout.chunk_nbytes,), np.dtype(np.uint8)))
    try:
        with ValueReader(0) as reader:
            problem = decode_chunk(layout, reader.read(value), elements, value.checksum)
    except OSError:
        return None
    return None if problem is not None else digest_of([elements])


def _link(file: str, new: Path) -> None:
    try:
        os.link(file, new)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        clone_file(file, new)


def _copy(values: Mapping[str, Extent], writer: DatabaseWriter) -> int:
    """Copy stored chunks, which are compared with their checksums, to new data files.

    Returns:
        The bytes copied. Keys of one place have one copy.
    """
    ordered = dict(sorted(values.items(), key=lambda item: (item[1].file, item[1].offset)))
    copies: dict[Extent, str] = {}
    with ValueReader(0) as reader:
        for key in in_requests(ordered, reader):
            value = ordered[key]
            first = copies.setdefault(value, key)
            if first != key:
                writer.copy_entry(key, first)
                continue
            try:
                data = bytes(reader.read(value))
            except OSError as error:
                raise _damaged(key, value, f"it cannot be read: {error}") from error
            if len(data) != value.length or crc32c(data) != OWN_CHECKSUM:
                raise _damaged(key, value, "its checksum does not match")
            if value.checksum != int.from_bytes(data[-CHECKSUM_BYTES:], "little"):
                raise _damaged(key, value, NOT_THE_WRITTEN)
            writer.append(
                key,
                [data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]],
                len(data),
                ends_in_checksum=True,
            )
    return sum(value.length for value in copies)


def _damaged(key: str, value: Extent, what: str) -> CorruptionError:
    return CorruptionError(
        f"chunk {key!r} in {value.file} at byte {value.offset} is damaged: {what}.",
        chunk=key,
        file=value.file,
        what=what,
    )
