"""What each of several processes decides in an incremental save, and the agreement of all.

Each process compares its own chunks with those that the process of the same number wrote to the
base step. Beside its database it leaves a document with its digests and with the base that it used.
The primary process joins these as it merges the databases.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec
from msgspec import Struct

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import FormatError, StorageError
from orbit_ckpt._src.storage.digests import DIGEST_BYTES, UNKNOWN, Digests
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.layout import DIGESTS
from orbit_ckpt._src.storage.manifest import Manifest, damaged_file
from orbit_ckpt._src.storage.store_path import map_paths

_CHECKSUM_BYTES = 4


class PartDigests(Struct, frozen=True):
    """The document of one process.

    Attributes:
        keys: Keys of the values in its data files, sorted.
        digests: Their digests, one after the other.
        generation: See `Digests`.
        base: Checksum of the index of the base step, see `DatabaseRecord`; None if the process used
            none.
    """

    keys: list[bytes]
    digests: bytes
    generation: int
    base: int | None

    @classmethod
    def of(cls, digests: Digests, keys: list[bytes], base: int | None) -> PartDigests:
        """Return the document of a process, given the keys of all values in its data files."""
        packed = b"".join([digests.by_key.get(key, UNKNOWN) for key in keys])
        return cls(keys, packed, digests.generation, base)

    def encode(self) -> bytes:
        """Return the document's file form."""
        body = msgspec.msgpack.encode(self)
        return body + crc32c(body).to_bytes(_CHECKSUM_BYTES, "little")

    @classmethod
    def decode(cls, data: bytes, file: str) -> PartDigests:
        """Decode a document.

        Raises:
            CorruptionError: It is damaged.
            FormatError: It is not understood.
        """
        body, tail = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if crc32c(body) != int.from_bytes(tail, "little"):
            raise damaged_file(file, "its checksum does not match")
        try:
            found = msgspec.msgpack.decode(body, type=cls)
        except msgspec.DecodeError as error:
            raise FormatError(f"{file}: {error}") from error
        if len(found.digests) != DIGEST_BYTES * len(found.keys):
            raise FormatError(f"{file}: {len(found.keys)} keys, {len(found.digests)} bytes")
        return found


def join_digests(directory: Path, parts: Sequence[str]) -> Digests:
    """Check that all processes of an incremental save used one base; join their digests.

    A process that could not use the base, and has written all of its part, agrees with any other.

    Args:
        directory: The directory of the save.
        parts: The directories in it with the databases of the processes. Their documents are
            removed.

    Raises:
        StorageError: They used different bases, or some did not save incrementally.
    """
    read = map_paths(_read, [directory / part for part in parts], root=directory)
    documents = dict(zip(parts, read, strict=True))
    users: dict[int | None, list[str]] = {}
    for part, document in documents.items():
        users.setdefault(document.base, []).append(part)
    users.pop(None, None)
    if len(users) > 1:
        raise StorageError(
            f"{directory}: the processes refer to different earlier checkpoints: "
            + "; ".join(
                f"{', '.join(some)} to that of index {index}" for index, some in users.items()
            )
            + ". Give all of them the same base, and replace none while it is in use."
        )
    files = [directory / part / DIGESTS for part in parts]
    map_paths(lambda file: file.unlink(), files, root=directory)
    found = documents.values()
    keys = chain.from_iterable(document.keys for document in found)
    packed = b"".join(document.digests for document in found)
    digests = [packed[at : at + DIGEST_BYTES] for at in range(0, len(packed), DIGEST_BYTES)]
    generation = max(document.generation for document in found)
    return Digests(dict(zip(keys, digests, strict=True)), generation)


def write_digests(directory: Path, merged: Manifest, digests: Digests) -> None:
    """Write the digests of a merged database.

    Args:
        directory: Its root.
        merged: Its record.
        digests: Those of its parts, which have a digest or `UNKNOWN` for every key.
    """
    if merged.database is not None:
        data = digests.encode(merged.database.index, sorted(digests.by_key))
        write_file(directory / DIGESTS, data)


def _read(part: Path) -> PartDigests:
    file = part / DIGESTS
    try:
        return PartDigests.decode(file.read_bytes(), str(file))
    except FileNotFoundError:
        raise StorageError(
            f"{part}: the processes do not save alike: this one has left no digests, others save "
            "incrementally. Give all of them the same base and the same options."
        ) from None
