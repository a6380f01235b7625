"""Paths into object stores, with the interface of local paths."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import Context, ContextVar, copy_context
from itertools import chain
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from typing_extensions import override

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.bucket import is_store_scheme
from orbit_ckpt._src.storage.system import open_to_read, read_at

if TYPE_CHECKING:
    from orbit_ckpt._src.storage.bucket import Bucket

T = TypeVar("T")
R = TypeVar("R")

_REQUESTS = 16
"""Maximum concurrent requests for several paths."""

_FILES_AT_ONCE = 64
"""Number of files that a thread visits one after another: to start it takes longer than one file.
"""

_FIRST_BYTES = 1 << 20
"""Bytes of an object to request first; most are smaller, and need only one request."""

_BLOCK_BYTES = 1 << 22
"""Bytes of a file to hold at once when all of it is read."""

OBJECT_BLOCK_BYTES = 1 << 26
"""Bytes of an object to hold at once when all of it is read: several concurrent requests."""

current_view: ContextVar[Callable[[StorePath, Bucket], Bucket] | None] = ContextVar(
    "orbit_ckpt_view", default=None
)
"""Returns a bucket as the running operation sees it, see `storage.store_view`."""

MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors of reading a missing file; after any other `OSError` it may exist and be intact."""


def is_damage(error: OSError) -> bool:
    """Return whether an error in reading a file concerns the file, not permissions or limits."""
    return isinstance(error, MISSING) or error.errno == errno.EIO


class StorePath(PosixPath):
    """A path such as `s3://bucket/run/step`; operations on small files work as on a disk.

    It is a `Path`, so that everything above storage takes either, with these differences: a
    directory exists while an object lies below it, `mkdir` does nothing, and a written object is
    durable at once. Operations without a counterpart raise; `str` and `os.fspath` give the URL.
    """

    @property
    def bucket(self) -> Bucket:
        """The bucket that contains it, as the running operation sees it."""
        view = current_view.get()
        bucket = self.own_bucket()
        return bucket if view is None else view(self, bucket)

    def own_bucket(self) -> Bucket:
        """Return the bucket that contains it, as it is now."""
        from orbit_ckpt._src.storage.buckets import open_bucket  # noqa: PLC0415 - imports TensorStore

        return open_bucket(self.parts[0].removesuffix(":"), self.parts[1])

    @property
    def key(self) -> str:
        """The key of the object."""
        return "/".join(self.parts[2:])

    @property
    def prefix(self) -> str:
        """Prefix of the keys of all objects below it."""
        return f"{self.key}/" if self.key else ""

    def __str__(self) -> str:
        scheme, *rest = self.parts or ("",)
        return f"{scheme}//{'/'.join(rest)}"

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"StorePath({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return StorePath, (str(self),)

    def spec(self) -> dict[str, Any]:
        """Return TensorStore's spec of everything below it."""
        return self.bucket.spec(self.prefix)

    def keys_below(self) -> list[str]:
        """Return the paths of all objects below it, relative to it, in order."""
        return self.bucket.list_below(self.prefix)

    def generation(self) -> bytes | None:
        """Return a value that changes with every write, None if the object does not exist."""
        return self.bucket.generation(self.key) if self.key else None

    def blocks(self, nbytes: int) -> Generator[bytes]:
        """Yield the object's contents in blocks of a size; the first and last one are shorter.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        position, wanted = 0, min(nbytes, _FIRST_BYTES)
        while block := self.bucket.read_range(self.key, position, wanted):
            yield block
            position += len(block)
            if len(block) < wanted:
                break
            wanted = nbytes

    @override
    def read_bytes(self) -> bytes:
        """Return the contents of the object.

        Raises:
            FileNotFoundError: It does not exist.
        """
        data = self.bucket.read(self.key) if self.key else None
        if data is None:
            raise FileNotFoundError(2, "No such object", str(self))
        return data

    @override
    def read_text(
        self,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    @override
    def write_bytes(self, data: Any) -> int:
        """Write the object in one request; it is durable once this returns."""
        self.bucket.write(self.key, bytes(data))
        return len(data)

    @override
    def write_text(
        self,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        """Write the object from text; its lines end as they do in `data`."""
        return self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))

    @override
    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object; a store does not report whether it existed."""
        self.bucket.delete(self.key)

    @override
    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the object exists."""
        return bool(self.key) and self.bucket.exists(self.key)

    @override
    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether an object exists below it."""
        page = self.bucket.list_page(self.prefix)
        return bool(self.keys_below() if page is None else page[0])

    @override
    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether the object, or one below it, exists."""
        return self.is_file() or self.is_dir()

    @override
    def is_symlink(self) -> bool:
        """Return False: stores have no links."""
        return False

    @override
    def iterdir(self) -> Generator[StorePath]:
        """Yield the objects and directories in it, in order."""
        objects, directories = self.bucket.list_directory(self.prefix)
        for name in sorted({*objects, *directories}):
            yield self / name

    def directories(self) -> list[str]:
        """Return the names of the directories in it, in order."""
        return self.bucket.list_directory(self.prefix)[1]

    def objects(self) -> list[str]:
        """Return the names of the objects in it, in order."""
        return self.bucket.list_directory(self.prefix)[0]

    @override
    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: stores need no directories."""

    @override
    def resolve(self, strict: bool = False) -> StorePath:
        return self

    @override
    def absolute(self) -> StorePath:
        return self

    @override
    def is_absolute(self) -> bool:
        """Return True: every URL is absolute."""
        return True

    @override
    def stat(self, *, follow_symlinks: bool = True) -> NoReturn:
        raise self._unsupported("stat")

    @override
    def open(self, *_: object, **__: object) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded
        raise self._unsupported("open")

    @override
    def glob(self, *_: object, **__: object) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded
        """Raise; pathlib would find nothing."""
        raise self._unsupported("glob")

    rglob = glob

    @override
    def rename(self, target: object) -> NoReturn:
        raise self._unsupported("rename")

    def _unsupported(self, what: str) -> StorageError:
        return StorageError(
            f"{self}: an object store has no {what!r}. Use a local directory for what needs it."
        )


def map_paths(function: Callable[[T], R], values: Iterable[T], *, root: Path) -> list[R]:
    """Return a function's results in order; for a store, or for many files, by several threads."""
    if isinstance(root, StorePath):
        return map_requests(function, values)
    given = list(values)
    groups = [given[i : i + _FILES_AT_ONCE] for i in range(0, len(given), _FILES_AT_ONCE)]
    if len(groups) < 2:
        return list(map(function, given))
    found = map_requests(lambda group: list(map(function, group)), groups)
    return list(chain.from_iterable(found))


def map_requests(function: Callable[[T], R], values: Iterable[T]) -> list[R]:
    """Return a function's results in order; requests run concurrently."""

    def call(context: Context, value: T) -> R:
        return context.run(function, value)

    given = list(values)
    # a copy of the caller's context for each: only one thread at a time can enter one
    contexts = [copy_context() for _ in given]
    with Workers(_REQUESTS, "orbit_ckpt-store") as pool:
        return list(pool.map(call, contexts, given))


def is_store_url(path: str) -> bool:
    """Return whether a path is the URL of an object store."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and is_store_scheme(scheme)


def parse_store_url(url: str) -> StorePath:
    """Return the path of a URL.

    Raises:
        ValueError: It names no bucket, or has a part that is `..`.
    """
    path = StorePath(url)
    if len(path.parts) < 2 or not url.partition("://")[2].strip("/"):
        raise ValueError(f"{url}: no bucket; give a URL such as s3://bucket/run/step.")
    if ".." in path.parts:
        raise ValueError(f"{url}: '..' has no meaning in an object store; give the whole path.")
    return path


def read_object_into(file: str, offset: int, buffers: Sequence[memoryview]) -> int:
    """Fill buffers one after the other with bytes of an object; return their number.

    Raises:
        FileNotFoundError: The object does not exist.
    """
    path = StorePath(file)
    return path.bucket.read_into(path.key, offset, buffers)


def file_size(file: Path, guess: int = 0) -> int:
    """Return the size of a file or an object in bytes.

    Args:
        file: The file.
        guess: Its probable size, which saves requests if right.

    Raises:
        FileNotFoundError: It does not exist.
    """
    if isinstance(file, StorePath):
        return file.bucket.size(file.key, guess)
    return file.stat().st_size


def file_names(directory: Path) -> list[str]:
    """Return the names of the files in a directory, in order."""
    if isinstance(directory, StorePath):
        return directory.objects()
    return sorted(entry.name for entry in directory.iterdir() if entry.is_file())


def read_extent(file: str, offset: int, nbytes: int) -> bytes:
    """Return bytes of a file or an object, fewer if it ends early.

    Raises:
        FileNotFoundError: It does not exist.
    """
    if is_store_url(file):
        path = StorePath(file)
        return path.bucket.read_range(path.key, offset, nbytes)
    descriptor = open_to_read(file)
    try:
        if nbytes > _FIRST_BYTES:  # reading allocates memory for all of it first
            nbytes = max(0, min(nbytes, os.fstat(descriptor).st_size - offset))
        return read_at(descriptor, nbytes, offset)
    finally:
        os.close(descriptor)


def read_start(file: Path, max_bytes: int) -> bytes:
    """Return the contents of a file or an object, at most some bytes; most are far smaller.

    Raises:
        FileNotFoundError: It does not exist.
    """
    if not isinstance(file, StorePath):
        return read_extent(str(file), 0, max_bytes)
    data = bytearray()
    for block in file.blocks(OBJECT_BLOCK_BYTES):
        data += block
        if len(data) >= max_bytes:
            break
    return bytes(data[:max_bytes])


def read_blocks(file: Path, object_bytes: int = OBJECT_BLOCK_BYTES) -> Generator[bytes]:
    """Yield the contents of a file or an object in blocks.

    Args:
        file: The file.
        object_bytes: Size of the blocks of an object.

    Raises:
        FileNotFoundError: It does not exist.
    """
    if isinstance(file, StorePath):
        yield from file.blocks(object_bytes)
        return
    with file.open("rb") as reading:
        while block := reading.read(_BLOCK_BYTES):
            yield block


@contextlib.contextmanager
def open_extents(file: Path) -> Generator[tuple[Callable[[int, int], bytes], int]]:
    """Open a file or an object to read many extents of it.

    Yields:
        A function that returns the bytes from a position, fewer at the end; the file's size.

    Raises:
        FileNotFoundError: It does not exist.
    """
    if isinstance(file, StorePath):
        yield functools.partial(read_extent, str(file)), file_size(file)
        return
    with file.open("rb", buffering=0) as stream:
        descriptor = stream.fileno()

        def read(start: int, length: int) -> bytes:
            return read_at(descriptor, length, start)

        yield read, os.fstat(descriptor).st_size
