"""System calls that not every operating system has, with fallbacks.

Everything is looked up when it is called. Linux has all of it; macOS lacks `renameat2` and
`sync_file_range`, Windows `fcntl`, reads and writes of several buffers, and descriptors of
directories.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_seeking = threading.Lock()

NO_DESCRIPTOR = -2
"""Stands for the descriptor of a directory where directories cannot be opened."""

_AT_FDCWD, _RENAME_EXCHANGE, _RENAME_SWAP = -100, 2, 2
_SYNC_FILE_RANGE_WRITE = 2
_FICLONE = 0x40049409


def open_to_read(path: str | os.PathLike[str]) -> int:
    """Open a file for reading; return its descriptor."""
    return os.open(path, os.O_RDONLY | _FLAGS)


def create_to_write(path: str | os.PathLike[str]) -> int:
    """Create a file for writing; return its descriptor.

    Raises:
        FileExistsError: It already exists.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)


def open_directory(path: str | os.PathLike[str]) -> int:
    """Return the descriptor of a directory, `NO_DESCRIPTOR` where unsupported.

    Raises:
        FileNotFoundError: The directory does not exist.
    """
    try:
        return os.open(path, os.O_RDONLY | _FLAGS)
    except PermissionError:
        if has_directory_descriptors() or not os.path.isdir(path):
            raise
        return NO_DESCRIPTOR


def is_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a directory or a link to one.

    `entry.is_dir()` raises an error if it is a link to itself.
    """
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def has_directory_descriptors() -> bool:
    """Return whether directories can be opened, and so synced and locked."""
    return hasattr(os, "O_DIRECTORY")


def close(descriptor: int) -> None:
    """Close a descriptor, of a directory too."""
    if descriptor != NO_DESCRIPTOR:
        os.close(descriptor)


def read_at(descriptor: int, nbytes: int, offset: int) -> bytes:
    """Return bytes of a file from an offset, fewer if it ends early."""
    pread = getattr(os, "pread", None)
    if pread is not None:
        return pread(descriptor, nbytes, offset)
    with _seeking:  # the position is the descriptor's, which threads may share
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, nbytes)


def read_into(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Fill buffers with bytes of a file from an offset, as far as one call does.

    Returns:
        The number of bytes, 0 at the end of the file.
    """
    preadv = getattr(os, "preadv", None)
    if preadv is not None:
        return preadv(descriptor, buffers, offset)
    first = next(buffer for buffer in buffers if buffer.nbytes)
    data = read_at(descriptor, first.nbytes, offset)
    first.cast("B")[: len(data)] = data
    return len(data)


def write(descriptor: int, buffers: Sequence[memoryview]) -> int:
    """Write buffers, as far as one call does; return the number of bytes."""
    writev = getattr(os, "writev", None)
    return os.write(descriptor, buffers[0]) if writev is None else writev(descriptor, buffers)


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Replace bytes of a file; it is written on from its end."""
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, offset, os.SEEK_SET)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)


def start_writeback(descriptor: int, offset: int, nbytes: int) -> None:
    """Ask the system, where possible, to start writing bytes to the disk."""
    sync_file_range = _libc_function("sync_file_range")
    if sync_file_range is not None:
        sync_file_range(
            ctypes.c_int(descriptor),
            ctypes.c_int64(offset),
            ctypes.c_int64(nbytes),
            ctypes.c_uint(_SYNC_FILE_RANGE_WRITE),
        )


def sync_file(path: str | os.PathLike[str]) -> None:
    """Wait until a written file is on the disk."""
    # Windows syncs only through writable descriptors
    flags = os.O_RDONLY if has_directory_descriptors() else os.O_RDWR
    descriptor = os.open(path, flags | _FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Wait until a directory's entries are on the disk, where supported."""
    descriptor = open_directory(path)
    try:
        if descriptor != NO_DESCRIPTOR:
            os.fsync(descriptor)
    finally:
        close(descriptor)


def lock(descriptor: int) -> None:
    """Lock a directory until the descriptor is closed.

    Raises:
        BlockingIOError: Another process has locked it.
        OSError: Locks are not supported here.
    """
    if fcntl is None or descriptor == NO_DESCRIPTOR:
        raise OSError(errno.ENOTSUP, "this system has no locks of directories")
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(descriptor: int) -> None:
    """Release a lock, and close its descriptor.

    Closing alone would not do: forked processes have descriptors of the same lock.
    """
    if fcntl is not None and descriptor != NO_DESCRIPTOR:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    close(descriptor)


def exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step, so that a crash leaves one or the other; False if unsupported."""
    renameat2, renamex = _libc_function("renameat2"), _libc_function("renamex_np")
    one, other = os.fsencode(a), os.fsencode(b)
    if renameat2 is not None:
        failed = renameat2(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE)
    elif renamex is not None:  # macOS
        failed = renamex(one, other, ctypes.c_uint(_RENAME_SWAP))
    else:
        return False
    if failed == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(b))


def link(file: Path, name: Path) -> None:
    """Give a file another name.

    Raises:
        FileExistsError: The name exists.
        OSError: The link is refused, or hard links are not supported here.
    """
    if not hasattr(os, "link"):
        raise OSError(errno.ENOTSUP, "this system has no hard links", str(name))
    os.link(file, name)


@functools.cache
def _libc_function(name: str) -> Callable[..., int] | None:
    """Return a C library function that Python does not offer, None if it does not exist."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows has no such library
        return None
    return getattr(library, name, None)


def clone_file(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Create a file that shares the blocks of another one until either is written to.

    Raises:
        OSError: The file system has no such copies.
    """
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "the system cannot clone files", os.fspath(path))
    original = open_to_read(source)
    try:
        copy = create_to_write(path)
        try:
            fcntl.ioctl(copy, _FICLONE, original)
        except BaseException:  # re-raised
            os.unlink(path)
            raise
        finally:
            os.close(copy)
    finally:
        os.close(original)
