"""Decide which chunks of a save the base step holds already."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

from msgspec import Struct, field, structs
from typing_extensions import Buffer

from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.storage.base_database import BaseDatabase, BaseError
from orbit_ckpt._src.storage.digests import Digests, digest_of, digests_of
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.layout import DIGESTS, join_key
from orbit_ckpt._src.storage.part_digests import PartDigests
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt._src.storage.zarr import ZarrArray

_logger = logging.getLogger(__name__)


class ReusedBytes(Struct, frozen=True):
    """How much of an incremental save is what its base holds.

    Attributes:
        referred: Bytes in files that both checkpoints share, as stored.
        copied: Bytes copied from files of the base of which little else is in use.
        why_not: Why the base, or that of an item, was not used; None if it was, or without one.
    """

    referred: int = 0
    copied: int = 0
    why_not: str | None = None

    def __add__(self, other: ReusedBytes) -> ReusedBytes:
        reasons = dict.fromkeys(filter(None, (self.why_not, other.why_not)))
        return ReusedBytes(
            self.referred + other.referred, self.copied + other.copied, "; ".join(reasons) or None
        )


class ReuseCounter:
    """Sums what the items of one save reuse."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = ReusedBytes()

    def add(self, reused: ReusedBytes) -> None:
        """Add what one item reuses."""
        with self._lock:
            self._now += reused

    def now(self) -> ReusedBytes:
        """Return the sum so far."""
        return self._now


class Base(Struct, frozen=True):
    """The step whose unchanged chunks a save refers to.

    Attributes:
        path: Its directory; None if there is none yet, so that only digests are recorded.
        root: The directory that the save writes to.
        full_every: Every how many saves one is written in full; None for never.
        reused: Sums what the save reuses.
        part: The database of this process below both directories; empty if it saves alone.
        parts: The databases of all processes.
    """

    path: Path | None
    root: Path
    full_every: int | None = None
    reused: ReuseCounter = field(default_factory=ReuseCounter)
    part: str = ""
    parts: Sequence[str] = ()

    def decline(self, why: str) -> None:
        """Note that the base is not used, and log why."""
        if self.path is not None:
            self.reused.add(ReusedBytes(why_not=f"{self.path}: {why}"))
            _logger.debug("%s is written in full. %s: %s", self.root, self.path, why)

    def below(self, directory: Path) -> Base:
        """Return the base of an item of the save, given the item's directory."""
        path = self.path and self.path / directory.relative_to(self.root)
        return Base(path, directory, self.full_every, self.reused)

    def of_part(self, part: str, parts: Sequence[str]) -> Base:
        """Return the base of the database of one of several processes."""
        return structs.replace(self, root=self.root / part, part=part, parts=parts)


_current: ContextVar[Base | None] = ContextVar("orbit_ckpt_base", default=None)


def current_base() -> Base | None:
    """Return the base of the save that is being staged; None for one that is not incremental."""
    return _current.get()


@contextlib.contextmanager
def saving_from(base: Base | None) -> Generator[None]:
    """Set the base of the save that is staged in the block."""
    token = _current.set(base)
    try:
        yield
    finally:
        _current.reset(token)


class SmallChunk(Struct, frozen=True, gc=False):
    """A chunk that is a whole array.

    Attributes:
        key: Its key.
        layout: How the array is stored.
        document_key: Key of the metadata document of the array.
        document: The document.
        elements: The elements in C order.
    """

    key: str
    layout: ZarrArray
    document_key: str
    document: bytes
    elements: Buffer


class IncrementalWrite:
    """Receives the chunks of one save of one database.

    Attributes:
        reused: How much of the save the base step holds, after `refer`.
    """

    def __init__(self, base: Base) -> None:
        """Open the base step; log why it cannot be used."""
        self.reused = ReusedBytes()
        self._sum = base.reused
        self._root = base.root
        self._is_part = bool(base.part)
        self._base: BaseDatabase | None = None
        self._written: DatabaseWriter | None = None  # once the base step is found to be damaged
        self._digests: dict[bytes, bytes] = {}
        if base.path is None:
            return
        try:
            self._base = _linked(base.path, base)
        except BaseError as error:
            base.decline(str(error))

    @property
    def base_files(self) -> Mapping[str, int] | None:
        """The data files of the base step's database, or this process's part; None without one.

        No other step has the same ones, because each writes its index to a new file.
        """
        return None if self._base is None else self._base.files

    def has_chunks(
        self, name: str, layout: ZarrArray, document: bytes, chunks: Iterable[Shape]
    ) -> bool:
        """Keep chunks of an array that are known to be unchanged; return whether all are there.

        Args:
            name: Its storage name.
            layout: How it is stored.
            document: Its metadata document.
            chunks: Their grid indices.
        """
        base = self._base
        if base is None or not base.has_document(join_key(name, layout.document_name), document):
            return False
        keys = [layout.chunk_key(name, index) for index in chunks]
        digests = [base.digest(key) for key in keys]
        if None in digests:
            return False
        found = {k: d for k, d in zip(keys, digests, strict=True) if d and base.keep(k, layout, d)}
        self._digests.update((key.encode(), digest) for key, digest in found.items())
        return len(found) == len(keys)

    def is_stored(
        self,
        name: str,
        layout: ZarrArray,
        document: bytes,
        key: str,
        pieces: Iterable[Buffer],
    ) -> bool:
        """Return whether a chunk need not be written, because the base step holds it.

        Args:
            name: Storage name of its array.
            layout: How that is stored.
            document: The metadata document of that.
            key: Key of the chunk.
            pieces: Its elements in C order.
        """
        if self._written is not None and self._written.has(key):
            return True
        digest = self._digests[key.encode()] = digest_of(pieces)
        base = self._base
        if base is None or not base.has_document(join_key(name, layout.document_name), document):
            return False
        return base.keep(key, layout, digest)

    def are_stored(self, small: Sequence[SmallChunk]) -> list[bool]:
        """Return for small chunks whether each need not be written."""
        written = self._written
        if written is not None:  # their digests are known
            return [written.has(chunk.key) for chunk in small]
        digests = digests_of([chunk.elements for chunk in small])
        self._digests.update(zip([chunk.key.encode() for chunk in small], digests, strict=True))
        base = self._base
        if base is None:
            return [False] * len(small)
        return [
            base.has_document(chunk.document_key, chunk.document)
            and base.keep(chunk.key, chunk.layout, digest)
            for chunk, digest in zip(small, digests, strict=True)
        ]

    def copy_digest(self, key: str, of: str) -> None:
        """Give a chunk the digest of another one, which has the same elements."""
        digest = self._digests.get(of.encode())
        if digest is not None:
            self._digests[key.encode()] = digest

    def refer(self, writer: DatabaseWriter) -> bool:
        """Add the chunks that the base step holds to the new database.

        Returns:
            Whether that succeeded. If not, it is damaged: pass all chunks again; those that are
            still missing then need to be written.
        """
        if self._base is None:
            return True
        try:
            self.reused = ReusedBytes(*self._base.refer_from(writer, self._root))
        except CorruptionError as error:
            _logger.warning("%s is written in full: its base is damaged. %s", self._root, error)
            self.reused = ReusedBytes(why_not=str(error))
            self._base.unlink(self._root)
            self._base, self._written = None, writer
            return False
        return True

    def write_digests(self, writer: DatabaseWriter) -> None:
        """Write the digests beside the database, which is complete."""
        self._sum.add(self.reused)
        record = writer.record.database
        if record is None:
            return
        base, keys = self._base, writer.keys_in_files()
        digests = Digests(self._digests, 0 if base is None else base.generation + 1)
        if self._is_part:
            index = None if base is None else base.record.index
            data = PartDigests.of(digests, keys, index).encode()
        else:
            data = digests.encode(record.index, keys)
        write_file(self._root / DIGESTS, data)


def _linked(path: Path, how: Base) -> BaseDatabase:
    """Return the database of the base step, with its files linked into the new one.

    Raises:
        BaseError: It cannot be used.
    """
    base = BaseDatabase(path, how.part, how.parts)
    if how.full_every is not None and base.generation + 1 >= how.full_every:
        raise BaseError(f"one of {how.full_every} saves is written in full")
    try:
        base.link_into(how.root)
    except BaseError:
        base.unlink(how.root)
        raise
    return base
