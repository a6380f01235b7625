"""Digests of chunks, which tell a later save what has changed.

A digest is the 128-bit XXH3 hash of a chunk's elements as stored, before compression. Its
collisions are as unlikely as those of random numbers; it protects against accidents, not against
somebody who makes two arrays with the same digest on purpose.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import xxhash
from msgspec import Struct
from typing_extensions import Buffer

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.storage.manifest import damaged_file

DIGEST_BYTES = 16
UNKNOWN = bytes(DIGEST_BYTES)
"""Stands for the digest of a value that is not a chunk of an array."""

_MAGIC = b"ORBIT-DIGESTS-1\n"
_HEAD = struct.Struct("<16sII")
"""Magic, checksum of the database's index, generation."""

_CHECKSUM_BYTES = 4


def digest_of(pieces: Iterable[Buffer]) -> bytes:
    """Return the digest of a chunk, given its elements in C order."""
    found = xxhash.xxh3_128()
    for piece in pieces:
        found.update(piece)
    return found.digest()


def digests_of(chunks: Sequence[Buffer]) -> list[bytes]:
    """Return the digests of several small chunks."""
    return list(map(xxhash.xxh3_128_digest, chunks))


class Digests(Struct, frozen=True):
    """The digests of the chunks in a database's data files.

    Attributes:
        by_key: The digests that are known, by key.
        generation: How many steps before this one it shares files with at most; 0 for a step that
            was written in full.
    """

    by_key: Mapping[bytes, bytes]
    generation: int = 0

    def encode(self, index: int, keys: Iterable[bytes]) -> bytes:
        """Return their document.

        Args:
            index: Checksum of the database's index, see `DatabaseRecord`.
            keys: Keys of all values in data files, sorted.
        """
        known = self.by_key
        head = _HEAD.pack(_MAGIC, index, self.generation)
        body = b"".join((head, *[known.get(key, UNKNOWN) for key in keys]))
        return body + crc32c(body).to_bytes(_CHECKSUM_BYTES, "little")

    @classmethod
    def decode(cls, data: bytes, index: int, keys: Sequence[bytes], file: str) -> Digests:
        """Decode a document.

        Args:
            data: The document.
            index: As for `encode`.
            keys: As for `encode`.
            file: Its file, for messages.

        Raises:
            CorruptionError: It is damaged.
            FormatError: It is of another form, or of another database.
        """
        body, tail = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if not data.startswith(_MAGIC):
            raise FormatError(f"{file}: expected a document that begins with {_MAGIC!r}")
        if crc32c(body) != int.from_bytes(tail, "little"):
            raise damaged_file(file, "its checksum does not match")
        _, bound, generation = _HEAD.unpack_from(body)
        start, step = _HEAD.size, DIGEST_BYTES
        if bound != index or len(body) - start != len(keys) * step:
            raise FormatError(f"{file}: it is not of the database beside it")
        found = [body[at : at + step] for at in range(start, len(body), step)]
        pairs = zip(keys, found, strict=True)
        return cls({key: digest for key, digest in pairs if digest != UNKNOWN}, generation)
