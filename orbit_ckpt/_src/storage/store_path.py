"""Paths into object stores, used like paths of a local disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.system import open_to_read, read_at

if TYPE_CHECKING:
    from orbit_ckpt._src.storage.buckets import Bucket

T = TypeVar("T")
R = TypeVar("R")

_REQUESTS = 16
"""How many requests are made at once for as many paths."""

_FIRST_BYTES = 1 << 20
"""How much of an object is asked for at first; most are smaller, and need one request then."""

_PREFIXES = ("gs://", "memory://", "s3://")
"""What URLs of object stores begin with; `memory` is one of this process, for tests."""


MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""What reading a file raises if it is not there; with any other `OSError` it may be, and intact."""


def is_damage(error: OSError) -> bool:
    """Whether an error in reading a file is about the file, not the rights or limits of readers."""
    return isinstance(error, MISSING) or error.errno == errno.EIO


class StorePath(PosixPath):
    """A path such as `s3://bucket/run/step`; what small files need works as it does on a disk.

    It is a `Path`, so that everything above storage takes either, with these differences: a
    directory exists while an object lies below it, `mkdir` does nothing, and a written object is
    durable at once. What has no counterpart raises; `str` and `os.fspath` give the URL.
    """

    @property
    def bucket(self) -> Bucket:
        """The bucket it is in."""
        from orbit_ckpt._src.storage.buckets import open_bucket  # noqa: PLC0415 - imports TensorStore

        return open_bucket(self.parts[0].removesuffix(":"), self.parts[1])

    @property
    def key(self) -> str:
        """The key of the object."""
        return "/".join(self.parts[2:])

    @property
    def prefix(self) -> str:
        """What the keys of all objects below it begin with."""
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
        """Return TensorStore's specification of what is below it."""
        return self.bucket.spec(self.prefix)

    def keys_below(self) -> list[str]:
        """Return the paths of all objects below it, relative to it, in order."""
        return self.bucket.list_below(self.prefix)

    def generation(self) -> bytes | None:
        """Return what changes whenever the object is written, None if there is none."""
        return self.bucket.generation(self.key) if self.key else None

    def blocks(self, nbytes: int) -> Generator[bytes]:
        """Yield the object's contents in blocks of a size; the first and last one are shorter.

        Raises:
            FileNotFoundError: There is no such object.
        """
        position, wanted = 0, min(nbytes, _FIRST_BYTES)
        while block := self.bucket.read_range(self.key, position, wanted):
            yield block
            position += len(block)
            if len(block) < wanted:
                break
            wanted = nbytes

    def read_bytes(self) -> bytes:
        """Return the contents of the object.

        Raises:
            FileNotFoundError: There is none.
        """
        data = self.bucket.read(self.key) if self.key else None
        if data is None:
            raise FileNotFoundError(2, "No such object", str(self))
        return data

    def read_text(
        self,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,  # noqa: ARG002 - pathlib's signature
    ) -> str:
        """Return the contents of the object as text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, data: Any) -> int:
        """Write the object in one request; it is durable once this returns."""
        self.bucket.write(self.key, bytes(data))
        return len(data)

    def write_text(
        self,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,  # noqa: ARG002 - pathlib's signature
    ) -> int:
        """Write the object from text; its lines end as they do in `data`."""
        return self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: ARG002 - pathlib's signature
        """Delete the object; a store does not say whether there was one."""
        self.bucket.delete(self.key)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - pathlib's signature
        """Whether there is an object."""
        return self.generation() is not None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - pathlib's signature
        """Whether there is an object below it."""
        return bool(self.keys_below())

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - pathlib's signature
        """Whether there is an object, or one below it."""
        return self.is_file() or self.is_dir()

    def is_symlink(self) -> bool:
        """Whether it is a link: never."""
        return False

    def iterdir(self) -> Generator[StorePath]:
        """Yield the objects and directories in it; lists everything below it."""
        for name in sorted({key.partition("/")[0] for key in self.keys_below()}):
            yield self / name

    def directories(self) -> list[str]:
        """Return the names of the directories in it, in order; lists everything below it."""
        return sorted({key.partition("/")[0] for key in self.keys_below() if "/" in key})

    def objects(self) -> list[str]:
        """Return the names of the objects in it, in order; lists everything below it."""
        return [key for key in self.keys_below() if "/" not in key]

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: directories need not be made."""

    def resolve(self, strict: bool = False) -> StorePath:  # noqa: ARG002 - pathlib's signature
        """Return the same path."""
        return self

    def absolute(self) -> StorePath:
        """Return the same path."""
        return self

    def is_absolute(self) -> bool:
        """Whether it is absolute: always."""
        return True

    def stat(self, *, follow_symlinks: bool = True) -> NoReturn:  # noqa: ARG002 - pathlib's signature
        """Raise."""
        raise self._unsupported("stat")

    def open(self, *_: object, **__: object) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded
        """Raise."""
        raise self._unsupported("open")

    def glob(self, *_: object, **__: object) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded
        """Raise; pathlib would find nothing."""
        raise self._unsupported("glob")

    rglob = glob

    def rename(self, target: object) -> NoReturn:  # noqa: ARG002 - pathlib's signature
        """Raise."""
        raise self._unsupported("rename")

    def _unsupported(self, what: str) -> StorageError:
        return StorageError(
            f"{self}: an object store has no {what!r}. Use a local directory for what needs it."
        )


def map_paths(function: Callable[[T], R], values: Iterable[T], *, root: Path) -> list[R]:
    """Return a function's results in order; below a store many are asked for at once."""
    if not isinstance(root, StorePath):
        return list(map(function, values))
    return map_requests(function, values)


def map_requests(function: Callable[[T], R], values: Iterable[T]) -> list[R]:
    """Return a function's results in order; many are asked for at once."""
    with Workers(_REQUESTS, "orbit_ckpt-store") as pool:
        return list(pool.map(function, values))


def is_store_url(path: str) -> bool:
    """Whether a path is the URL of an object store."""
    return path.startswith(_PREFIXES)


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
    """Fill buffers one after the other with bytes of an object; return how many there were.

    Raises:
        FileNotFoundError: There is no such object.
    """
    path = StorePath(file)
    done = 0
    for buffer in buffers:
        count = path.bucket.read_into(path.key, offset + done, buffer) if buffer.nbytes else 0
        done += count
        if count < buffer.nbytes:
            break
    return done


def file_size(file: Path, guess: int = 0) -> int:
    """Return how many bytes a file has, or an object.

    Args:
        file: The file.
        guess: How many it probably has; finding out is then cheap.

    Raises:
        FileNotFoundError: There is none.
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
        FileNotFoundError: There is none.
    """
    if is_store_url(file):
        path = StorePath(file)
        return path.bucket.read_range(path.key, offset, nbytes)
    descriptor = open_to_read(file)
    try:
        if nbytes > _FIRST_BYTES:  # memory for all of it is taken before it is read
            nbytes = max(0, min(nbytes, os.fstat(descriptor).st_size - offset))
        return read_at(descriptor, nbytes, offset)
    finally:
        os.close(descriptor)
