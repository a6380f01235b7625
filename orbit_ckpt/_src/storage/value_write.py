"""Write values by key: into an OCDBT database, or as one file each.

Many threads add values at once. Those of a database are appended to data files, one per active
thread, because file systems let only one thread at a time write to a file; the B+tree with the
place of each value is written last. Nothing is copied on the way to the disk.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, repeat
from pathlib import Path
from typing import Protocol

import numpy as np
from typing_extensions import Buffer, override

from orbit_ckpt._src.storage.data_file import DataFile, write_all, write_head
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.layout import (
    DEFAULT_DATA_FILE_BYTES,
    OCDBT_DATA,
    OCDBT_MANIFEST,
    Extent,
    Value,
)
from orbit_ckpt._src.storage.manifest import (
    DatabaseRecord,
    FileRecord,
    Manifest,
    ValueChecksums,
    index_checksum,
)
from orbit_ckpt._src.storage.object_write import DEFAULT_OBJECT_BYTES, DataObject, Uploads
from orbit_ckpt._src.storage.ocdbt_encode import (
    MAX_INLINE_BYTES,
    NodeReference,
    encode_leaf,
    encode_manifest,
    leaf_reference,
    split_entries,
    write_interior,
)
from orbit_ckpt._src.storage.store_path import StorePath

_unpack = partial(int.from_bytes, byteorder="little")


class ValueWriter(Protocol):
    """Accepts values from any thread."""

    def put(self, key: str, value: bytes) -> None:
        """Write a small value."""
        ...

    def append(
        self, key: str, parts: Iterable[Buffer], nbytes: int, *, ends_in_checksum: bool = False
    ) -> None:
        """Write a value in parts, which must not change until `close`.

        Args:
            key: Its key.
            parts: Its bytes. The first part, if it is a bytearray, may change until the last one.
            nbytes: Their approximate size.
            ends_in_checksum: Whether the last part is the crc32c of the others.
        """
        ...

    def put_all(self, values: Iterable[tuple[str, bytes]]) -> None:
        """Write small values, with their keys."""
        for key, value in values:
            self.put(key, value)

    def append_all(
        self, keys: Sequence[str], values: Sequence[Buffer], checksums: Sequence[bytes]
    ) -> None:
        """Write values.

        Args:
            keys: Their keys.
            values: The bytes of each.
            checksums: The crc32c of each, little-endian, which is stored behind it; empty if none
                is.
        """
        for i, (key, value) in enumerate(zip(keys, values, strict=True)):
            parts = (value, checksums[i]) if checksums else (value,)
            nbytes = memoryview(value).nbytes
            self.append(key, parts, nbytes, ends_in_checksum=bool(checksums))

    def close(self) -> None:
        """Make all values durable; add none afterwards."""
        ...

    def abort(self) -> None:
        """Discard the values."""
        ...


class DatabaseWriter(ValueWriter):
    """Writes a new OCDBT database as its only writer.

    Attributes:
        record: The manifest's record of the database, once it is closed.
    """

    def __init__(
        self, directory: Path, *, data_file_bytes: int | None, values_have_checksums: bool = True
    ) -> None:
        """Create a database.

        Args:
            directory: Its root.
            data_file_bytes: Size at which a new data file begins; None is 2 GiB, 0 no limit.
            values_have_checksums: Whether large values end in their own crc32c. These are then
                recorded one by one, else data files as a whole.

        Raises:
            ValueError: `data_file_bytes` is negative.
        """
        size = DEFAULT_DATA_FILE_BYTES if data_file_bytes is None else data_file_bytes
        if size < 0:
            raise ValueError(
                f"OCDBT target_data_file_size must be >= 0, where 0 means no limit; got {size}"
            )
        self.record = Manifest()
        self._root = directory
        self._whole_files = not values_have_checksums
        self._uploads = Uploads(directory) if isinstance(directory, StorePath) else None
        self._max_file_bytes = size
        if self._uploads is not None:
            self._max_file_bytes = data_file_bytes or DEFAULT_OBJECT_BYTES
        self._values: dict[bytes, Value] = {}
        self._files: list[DataFile | DataObject] = []
        self._free: list[DataFile | DataObject] = []
        self._parts: list[Manifest] = []
        self._lock = threading.Lock()

    @override
    def put(self, key: str, value: bytes) -> None:
        if len(value) <= MAX_INLINE_BYTES:
            self._values[key.encode()] = value
        else:
            self.append(key, [value], len(value))

    @override
    def append(
        self, key: str, parts: Iterable[Buffer], nbytes: int, *, ends_in_checksum: bool = False
    ) -> None:
        file = self._file_with_room(nbytes)
        self._values[key.encode()] = file.append(parts, ends_in_checksum=ends_in_checksum)
        self._release(file)

    @override
    def put_all(self, values: Iterable[tuple[str, bytes]]) -> None:
        found = {key.encode(): value for key, value in values}
        if max(map(len, found.values()), default=0) <= MAX_INLINE_BYTES:
            self._values.update(found)
        else:
            super().put_all((key.decode(), value) for key, value in found.items())

    @override
    def append_all(
        self, keys: Sequence[str], values: Sequence[Buffer], checksums: Sequence[bytes]
    ) -> None:
        pairs = list(zip(values, checksums or repeat(b""), strict=False))
        block = memoryview(b"".join(chain.from_iterable(pairs)))
        needs_sums = not checksums and not self._whole_files
        if needs_sums or 0 < self._max_file_bytes < block.nbytes:
            super().append_all(keys, values, checksums)
            return
        file = self._file_with_room(block.nbytes)
        # the end of the last value is that of the block, whose own checksum is not recorded
        place = file.append([block[:-4], block[-4:]], ends_in_checksum=bool(checksums))
        self._release(file)
        lengths = [memoryview(value).nbytes + len(tail) for value, tail in pairs]
        offsets = accumulate(lengths, initial=place.offset)
        sums = repeat(None) if self._whole_files else map(_unpack, checksums)
        places = map(Extent, repeat(place.file), offsets, lengths, sums)
        self._values.update(zip(map(str.encode, keys), places, strict=False))

    def refer(self, values: Mapping[str, Value], record: Manifest) -> None:
        """Add values whose data files are already below the root.

        Args:
            values: The values.
            record: Records of those data files, by path relative to the root.
        """
        self._values.update((key.encode(), value) for key, value in values.items())
        self._parts.append(record)

    @property
    def values(self) -> Mapping[bytes, Value]:
        """The values that were added, or their places, by key."""
        return self._values

    def copy_entry(self, key: str, of: str) -> None:
        """Give a key the value of another one, which is stored once."""
        self._values[key.encode()] = self._values[of.encode()]

    def has(self, key: str) -> bool:
        """Return whether a value was added."""
        return key.encode() in self._values

    def begin_files(self) -> None:
        """Add the values that follow to data files without any of those before."""
        with self._lock:
            self._free.clear()

    def keys_in_files(self) -> list[bytes]:
        """Return the keys of the values in data files, sorted."""
        return sorted(key for key, value in self._values.items() if isinstance(value, Extent))

    @override
    def close(self) -> None:
        nodes: list[bytes] = []
        root = self._write_tree(nodes) if self._values else None
        for file in self._files:
            file.close()
        if self._uploads is not None:
            self._uploads.wait()
        manifest = encode_manifest(root, uuid=os.urandom(16), commit_time_ns=time.time_ns())
        write_file(self._root / OCDBT_MANIFEST, manifest)
        self.record = self._record(manifest, nodes)

    @override
    def abort(self) -> None:
        for file in self._files:
            file.abort()
        if self._uploads is not None:
            self._uploads.abort()

    def detach(self) -> tuple[dict[str, Value], Manifest]:
        """Make the values durable without an index; return them for the `refer` of another writer.

        Returns:
            The values, or their places, and the records of the data files.
        """
        for file in self._files:
            file.close()
        if self._uploads is not None:
            self._uploads.wait()
        values = {key.decode(): value for key, value in self._values.items()}
        files, sizes = self._file_records()
        return values, Manifest(files, database=DatabaseRecord(0, b"", sizes))

    def remove_other_files(self) -> None:
        """Remove data files that no value is in, which lost workers have left behind."""
        files, sizes = self._file_records()
        known = {*files, *sizes}
        folder = self._root / OCDBT_DATA
        if isinstance(folder, StorePath):
            names = folder.keys_below()
        else:
            names = os.listdir(folder) if folder.is_dir() else []
        for name in names:
            if f"{OCDBT_DATA}/{name}" not in known:
                (folder / name).unlink(missing_ok=True)

    def _file_with_room(self, nbytes: int) -> DataFile | DataObject:
        """Return a data file with room for a value that no other thread is writing to."""
        with self._lock:
            if self._uploads is not None:
                return self._open_object(self._uploads)
            for i, file in enumerate(self._free):
                if not self._max_file_bytes or file.nbytes + nbytes <= self._max_file_bytes:
                    return self._free.pop(i)
            if not self._files:
                (self._root / OCDBT_DATA).mkdir(exist_ok=True)
            name = f"{OCDBT_DATA}/{os.urandom(16).hex()}"
            file = DataFile(self._root, name, ValueChecksums(whole_file=self._whole_files))
            self._files.append(file)
            return file

    def _release(self, file: DataFile | DataObject) -> None:
        """Make a data file available to other threads again, or send it if it is full."""
        if self._uploads is not None and file.nbytes >= self._max_file_bytes:
            file.close()
            return
        with self._lock:
            self._free.append(file)

    def _open_object(self, uploads: Uploads) -> DataFile | DataObject:
        """Return an object not sent yet; any, because it may grow larger than others."""
        if self._free:
            return self._free.pop()
        name = f"{OCDBT_DATA}/{os.urandom(16).hex()}"
        self._files.append(DataObject(uploads, name, ValueChecksums(whole_file=self._whole_files)))
        return self._files[-1]

    def _write_tree(self, checksums: list[bytes]) -> NodeReference:
        """Write the B+tree; add the checksums of its nodes to a list."""
        file = self._file_with_room(0)

        def write(node: bytes) -> Extent:
            checksums.append(node[-4:])
            return file.append([node[:-4], node[-4:]], ends_in_checksum=True)

        nodes = [
            leaf_reference(entries, write(encode_leaf(entries)))
            for entries in split_entries(self._values)
        ]
        return write_interior(nodes, write)

    def _record(self, manifest: bytes, nodes: Sequence[bytes]) -> Manifest:
        files, sizes = self._file_records()
        files[OCDBT_MANIFEST] = FileRecord.of_contents(manifest)
        places = [(k, v.checksum) for k, v in self._values.items() if isinstance(v, Extent)]
        checksums = [checksum for _, checksum in sorted(places)]
        is_known = not self._whole_files and None not in checksums
        packed = np.array(checksums, "<u4").tobytes() if is_known else b""
        database = DatabaseRecord(index_checksum(nodes), packed, sizes)
        return Manifest(files, tuple(sorted(sizes)), database=database)

    def _file_records(self) -> tuple[dict[str, FileRecord], dict[str, int]]:
        """Return the records of data files with known checksums, and the sizes of the others."""
        files: dict[str, FileRecord] = {}
        sizes: dict[str, int] = {}
        for part in self._parts:
            files |= part.files
            sizes |= part.database.files if part.database else {}
        for file in self._files:
            whole = file.sums.file_record(file.nbytes)
            if whole is None:
                sizes[file.name] = file.nbytes
            else:
                files[file.name] = whole
        return files, sizes


class FilesWriter(ValueWriter):
    """Writes a file for every value, below a directory."""

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._uploads = Uploads(directory) if isinstance(directory, StorePath) else None
        self._made: set[str] = set()

    @override
    def put(self, key: str, value: bytes) -> None:
        self.append(key, [value], len(value))

    @override
    def append(
        self,
        key: str,
        parts: Iterable[Buffer],
        nbytes: int,
        *,
        ends_in_checksum: bool = False,
    ) -> None:
        if self._uploads is not None:
            file = DataObject(self._uploads, key, ValueChecksums(whole_file=False))
            file.append(parts, ends_in_checksum=ends_in_checksum)
            file.close()
            return
        folder = key.rpartition("/")[0]
        if folder not in self._made:
            (self._root / folder).mkdir(parents=True, exist_ok=True)
            self._made.add(folder)
        with open(self._root / key, "xb", buffering=0) as file:
            head: memoryview | None = None
            for view in map(memoryview, parts):
                head = view if head is None else head
                write_all(file.fileno(), [view])
            write_head(file.fileno(), head, 0)
            os.fsync(file.fileno())

    @override
    def close(self) -> None:
        if self._uploads is not None:
            self._uploads.wait()

    @override
    def abort(self) -> None:
        if self._uploads is not None:
            self._uploads.abort()
