"""The records of a manifest, their file form, and checksums of values while they are written.

The crc32c of a whole data file would not do: for values that each end in their own crc32c it
depends on their lengths only, so all steps of a run would have the same one. The values of a
database are therefore recorded one by one.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field
from typing_extensions import Buffer

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import CorruptionError, FormatError, check_version
from orbit_ckpt._src.storage.inner_path import check_name, is_inner_name

FORMAT_VERSION = 1

_Count = Annotated[int, Meta(ge=0)]
_Checksum = Annotated[int, Meta(ge=0, lt=2**32)]

OWN_CHECKSUM = 0x48674BC7
"""crc32c of any data that ends in its own crc32c; it distinguishes no two such files."""


_TAIL_BYTES = 4


class FileRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The expected state of a file.

    Attributes:
        nbytes: Size.
        crc32c: Castagnoli checksum of the contents; for files that end in their checksum, such as
            zarr3 chunks, that one.
    """

    nbytes: _Count
    crc32c: _Checksum

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

    @classmethod
    def of_contents(cls, data: bytes) -> FileRecord:
        """Return the record of a file with some contents."""
        return cls.of(len(data), crc32c(data), data[-_TAIL_BYTES:])


class DatabaseRecord(Struct, frozen=True):
    """The expected contents of an OCDBT database.

    Attributes:
        index: Checksum of its B+tree, see `index_checksum`.
        values: Checksums of the values in data files, in the order of their keys, as little-endian
            uint32; see `Extent.checksum`. Empty if the data files are recorded as a whole.
        files: Sizes of the data files that hold those values.
    """

    index: _Checksum
    values: bytes
    files: Mapping[str, _Count]

    def __post_init__(self) -> None:
        if len(self.values) % 4:
            raise ValueError(f"{len(self.values)} bytes of checksums of four bytes each")

    def checksums(self) -> Sequence[int]:
        """Return the checksums of the values."""
        return list(struct.unpack(f"<{len(self.values) // 4}I", self.values))


def index_checksum(nodes: Iterable[bytes]) -> int:
    """Return the checksum of a B+tree.

    Args:
        nodes: The last four bytes of every node, which are its crc32c, in any order.
    """
    return crc32c(b"".join(sorted(nodes)))


class Manifest(Struct, frozen=True):
    """Records of the files of one directory.

    Attributes:
        files: Record of every covered file, by path relative to the directory.
        self_checked: Paths, or prefixes that end in `/`, of files without a record there.
        version: Version of the manifest's form.
        database: The record of the database, None without one or if an earlier release wrote it.
    """

    files: Mapping[str, FileRecord] = field(default_factory=dict[str, FileRecord])
    self_checked: Sequence[str] = ()
    version: int = FORMAT_VERSION
    database: DatabaseRecord | None = None

    def to_bytes(self) -> bytes:
        """Encode as a document, which ends in the checksum of all before it."""
        document: dict[str, object] = {
            "format_version": self.version,
            "self_checked": list(self.self_checked),
            "files": {path: [r.nbytes, r.crc32c] for path, r in sorted(self.files.items())},
        }
        if self.database is not None:  # earlier releases ignore it
            document["database"] = {
                "index": self.database.index,
                "values": b64encode(self.database.values).decode(),
                "files": dict(self.database.files),
            }
        body = json.dumps(document, separators=(",", ":")).encode()
        return body + b"\n" + f"{crc32c(body):08x}".encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, file: str) -> Manifest:
        """Decode a document.

        Args:
            data: The document.
            file: Its file, for messages.

        Raises:
            CorruptionError: It is damaged.
            FormatError: It is not understood.
            UnsafePathError: It records a file outside its directory.
            VersionError: A later version wrote it.
        """
        body, _, tail = data.rstrip(b"\n").rpartition(b"\n")
        if tail != b"%08x" % crc32c(body):
            raise damaged_file(file, "its checksum does not match")
        try:
            document = _DECODER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            document = _decode_slowly(body, file)
        check_version(file, document.format_version, FORMAT_VERSION)
        files, database = document.files, document.database
        for path in chain(files, database.files) if database else files:
            if not is_inner_name(path):
                check_name(path, file)
        return cls(files, document.self_checked, document.format_version, database)


class _Document(Struct):
    """A manifest in its file form."""

    format_version: int
    self_checked: tuple[str, ...]
    files: dict[str, FileRecord]
    database: DatabaseRecord | None = None


_DECODER = msgspec.json.Decoder(_Document)


def _decode_slowly(body: bytes, file: str) -> _Document:
    """Decode a document with non-text file names, or raise what is wrong with it.

    Raises:
        FormatError: It is not understood.
        VersionError: A later version wrote it.
    """
    try:
        document = json.loads(body)
        check_version(file, int(document["format_version"]), FORMAT_VERSION)
        return msgspec.convert(document, _Document)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{file}: {type(error).__name__}: {error}") from error


def damaged_file(file: Path | str, what: str) -> CorruptionError:
    """Return the error that explains the damage of a file."""
    return CorruptionError(
        f"{file} is damaged: {what}. Restore an earlier checkpoint or another copy of this one.",
        file=str(file),
        what=what,
    )


class ValueChecksums:
    """The checksums of the values appended to one data file.

    Args:
        whole_file: Whether to compute the checksum of the file, else that of each value. For values
            that end in their own crc32c, one of the file would depend on their lengths only.
    """

    def __init__(self, *, whole_file: bool) -> None:
        self.last: int | None = None
        """Checksum of the last value; see `Extent.checksum`."""
        self._whole_file = whole_file
        self._checksum = 0
        self._tail = b""

    def views(self, parts: Iterable[Buffer], *, ends_in_checksum: bool) -> Iterator[memoryview]:
        """Yield the parts of a value; its checksum is `last` afterwards.

        Args:
            parts: The value's bytes.
            ends_in_checksum: Whether the last part is the crc32c of the others, little-endian.
        """
        must_sum = self._whole_file or not ends_in_checksum
        checksum, tail = (self._checksum, self._tail) if self._whole_file else (0, b"")
        view = memoryview(b"")
        for part in parts:
            view = memoryview(part)
            if must_sum:
                checksum = crc32c(view, checksum)
                tail = (tail + bytes(view.cast("B")[-_TAIL_BYTES:]))[-_TAIL_BYTES:]
            yield view
        if self._whole_file:
            self._checksum, self._tail = checksum, tail
        elif ends_in_checksum:
            self.last = int.from_bytes(view, "little")
        else:
            self.last = FileRecord.of(0, checksum, tail).crc32c

    def file_record(self, nbytes: int) -> FileRecord | None:
        """Return the record of the file, None if the values have checksums of their own."""
        return FileRecord.of(nbytes, self._checksum, self._tail) if self._whole_file else None
