"""Intercept Python's functions that change the file system.

What C++ code writes, such as TensorStore's drivers, passes unseen. Programs call these functions as
attributes of `os`, `io` and `builtins`; the library itself does, too.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable, Generator, Sequence
from typing import IO, Any, cast
from unittest import mock

from typing_extensions import Buffer, override

from orbit_ckpt.testing.hook.operations import Call, Interceptor, Operation

_Function = Callable[..., Any]

_WRITABLE = os.O_WRONLY | os.O_RDWR
_F_GETPATH = 50  # of macOS
_MOST_PATH = 1024


@contextlib.contextmanager
def intercepted(interceptor: Interceptor) -> Generator[None]:
    """Pass every change of the file system through an interceptor for the duration of a block."""
    with contextlib.ExitStack() as stack:
        for module, name, replacement in _replacements(interceptor):
            stack.enter_context(mock.patch.object(module, name, replacement))
        yield


def intercept(interceptor: Interceptor) -> None:
    """Pass every change of the file system through an interceptor until the process ends."""
    for module, name, replacement in _replacements(interceptor):
        setattr(module, name, replacement)


def _replacements(interceptor: Interceptor) -> list[tuple[Any, str, _Function]]:
    makers: dict[str, Callable[[Interceptor, _Function], _Function]] = {
        "open": _os_open,
        "mkdir": _mkdir,
        **dict.fromkeys(("rename", "replace"), functools.partial(_of_two, "rename")),
        **dict.fromkeys(("link", "symlink"), functools.partial(_of_two, "link")),
        **dict.fromkeys(("unlink", "remove"), functools.partial(_of_one, "unlink")),
        "rmdir": functools.partial(_of_one, "rmdir"),
        "truncate": functools.partial(_of_one, "truncate"),
        "ftruncate": functools.partial(_of_descriptor, "truncate"),
        **dict.fromkeys(("fsync", "fdatasync"), functools.partial(_of_descriptor, "fsync")),
        "write": _write,
        "writev": _writev,
        "pwrite": _pwrite,
        "sendfile": _sendfile,
        "copy_file_range": _copy_file_range,
    }
    opening = _open(interceptor)
    return [
        (builtins, "open", opening),
        (io, "open", opening),
        *(
            (os, name, functools.wraps(getattr(os, name))(make(interceptor, getattr(os, name))))
            for name, make in makers.items()
            if hasattr(os, name)
        ),
    ]


def path_of(descriptor: int) -> str:
    """Return the path of an open file or directory, an empty text if the system does not say."""
    try:
        if sys.platform == "darwin":
            import fcntl  # noqa: PLC0415 - Windows has no such module

            found = fcntl.fcntl(descriptor, _F_GETPATH, bytes(_MOST_PATH))
            return os.fsdecode(found.rstrip(b"\0"))
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except (OSError, ImportError):
        return ""


def _absolute(path: Any, dir_fd: int | None = None) -> str:
    if isinstance(path, int):
        return path_of(path)
    text = os.fsdecode(path)
    return os.path.normpath(os.path.join(os.getcwd() if dir_fd is None else path_of(dir_fd), text))


def _of_one(kind: str, interceptor: Interceptor, original: _Function) -> _Function:
    def call(path: Any, *args: Any, dir_fd: int | None = None, **more: Any) -> Any:
        place = _absolute(path, dir_fd)
        given = more if dir_fd is None else {**more, "dir_fd": dir_fd}
        perform = functools.partial(original, path, *args, **given)
        if not interceptor.wants(place):
            return perform()
        return interceptor(Call(Operation(kind, place), perform, _nothing))

    return call


def _mkdir(interceptor: Interceptor, original: _Function) -> _Function:
    def call(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = _absolute(path, dir_fd)
        perform = functools.partial(original, path, mode, dir_fd=dir_fd)
        if interceptor.wants(place) and not os.path.lexists(place):  # else it only raises
            interceptor(Call(Operation("mkdir", place), perform, _nothing))
        else:
            perform()

    return call


def _of_two(kind: str, interceptor: Interceptor, original: _Function) -> _Function:
    def call(source: Any, path: Any, *args: Any, **more: Any) -> Any:
        from_fd, to_fd = more.get("src_dir_fd"), more.get("dst_dir_fd", more.get("dir_fd"))
        old, new = _absolute(source, from_fd), _absolute(path, to_fd)
        perform = functools.partial(original, source, path, *args, **more)
        if not (interceptor.wants(old) or interceptor.wants(new)):
            return perform()
        return interceptor(Call(Operation(kind, new, old), perform, _nothing))

    return call


def _of_descriptor(kind: str, interceptor: Interceptor, original: _Function) -> _Function:
    def call(descriptor: Any, *args: Any) -> Any:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        perform = functools.partial(original, descriptor, *args)
        place = path_of(number)
        if not interceptor.wants(place):
            return perform()
        return interceptor(Call(Operation(kind, place), perform, _nothing))

    return call


def _os_open(interceptor: Interceptor, original: _Function) -> _Function:
    def call(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        perform = functools.partial(original, path, flags, mode, dir_fd=dir_fd)
        place = _absolute(path, dir_fd)
        if not flags & _WRITABLE or not interceptor.wants(place):
            return perform()
        return interceptor(Call(Operation("open", place), perform, perform))

    return call


def _write(interceptor: Interceptor, original: _Function) -> _Function:
    def call(descriptor: int, data: Buffer) -> int:
        return _write_through(interceptor, descriptor, [data], lambda: original(descriptor, data))

    return call


def _writev(interceptor: Interceptor, original: _Function) -> _Function:
    def call(descriptor: int, buffers: Sequence[Buffer]) -> int:
        return _write_through(
            interceptor, descriptor, buffers, lambda: original(descriptor, buffers)
        )

    return call


_original_write = os.write


def _write_through(
    interceptor: Interceptor,
    descriptor: int,
    buffers: Sequence[Buffer],
    perform: Callable[[], int],
) -> int:
    place = path_of(descriptor)
    if not interceptor.wants(place):
        return perform()
    nbytes = sum(memoryview(buffer).nbytes for buffer in buffers)

    def write_only(count: int) -> None:
        data = b"".join(buffers)[:count]
        while data:
            data = data[_original_write(descriptor, data) :]

    def pretend() -> int:
        with contextlib.suppress(OSError):  # what has no position
            os.lseek(descriptor, nbytes, os.SEEK_CUR)
        return nbytes

    return interceptor(Call(Operation("write", place, nbytes=nbytes), perform, pretend, write_only))


def _pwrite(interceptor: Interceptor, original: _Function) -> _Function:
    def call(descriptor: int, data: Buffer, offset: int) -> int:
        place = path_of(descriptor)
        perform = functools.partial(original, descriptor, data, offset)
        if not interceptor.wants(place):
            return perform()
        view = memoryview(data).cast("B")
        return interceptor(
            Call(
                Operation("write", place, nbytes=view.nbytes),
                perform,
                lambda: view.nbytes,
                lambda count: original(descriptor, view[:count], offset),
            )
        )

    return call


def _sendfile(interceptor: Interceptor, original: _Function) -> _Function:
    def call(out_fd: int, in_fd: int, offset: int | None, count: int, *args: Any) -> int:
        place = path_of(out_fd)
        perform = functools.partial(original, out_fd, in_fd, offset, count, *args)
        if not interceptor.wants(place):
            return perform()

        def write_only(most: int) -> None:
            original(out_fd, in_fd, offset, most, *args)

        operation = Operation("write", place, nbytes=_rest(in_fd, offset, count))
        return interceptor(Call(operation, perform, _zero, write_only))

    return call


def _copy_file_range(interceptor: Interceptor, original: _Function) -> _Function:
    def call(src: int, dst: int, count: int, *args: Any, **more: Any) -> int:
        place = path_of(dst)
        perform = functools.partial(original, src, dst, count, *args, **more)
        if not interceptor.wants(place):
            return perform()

        def write_only(most: int) -> None:
            original(src, dst, most, *args, **more)

        operation = Operation("write", place, nbytes=_rest(src, None, count))
        return interceptor(Call(operation, perform, _zero, write_only))

    return call


def _rest(descriptor: int, offset: int | None, most: int) -> int:
    """Return how many bytes of a file there are from an offset, or its position."""
    try:
        at = os.lseek(descriptor, 0, os.SEEK_CUR) if offset is None else offset
        return max(0, min(most, os.fstat(descriptor).st_size - at))
    except OSError:
        return most


def _zero() -> int:
    return 0


def _nothing(*_: object) -> None:
    return None


class _WatchedFile(io.FileIO):
    """A file whose writes pass through an interceptor; buffers are stacked on it as usual."""

    def __init__(
        self, interceptor: Interceptor, file: Any, mode: str, closefd: bool, opener: Any
    ) -> None:
        self._interceptor = interceptor
        super().__init__(file, mode, closefd, opener)

    @override
    def write(self, data: Buffer, /) -> int:
        return _write_through(
            self._interceptor, self.fileno(), [data], lambda: super(_WatchedFile, self).write(data)
        )

    @override
    def truncate(self, size: int | None = None, /) -> int:
        operation = Operation("truncate", path_of(self.fileno()))
        return self._interceptor(
            Call(
                operation,
                lambda: super(_WatchedFile, self).truncate(size),
                lambda: self.tell() if size is None else size,
            )
        )


def _open(interceptor: Interceptor) -> _Function:
    original: _Function = builtins.open

    @functools.wraps(original)
    def call(  # noqa: PLR0913, PLR0917 - as `open`
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> IO[Any]:
        rest = (encoding, errors, newline)
        is_new = not isinstance(file, int) and opener is None  # else it is open already
        if not set(mode) & set("wxa+") or not interceptor.wants(_absolute(file)):
            return original(file, mode, buffering, *rest, closefd, opener)
        binary = "b" in mode
        if not binary and buffering == 0:
            raise ValueError("can't have unbuffered text I/O")
        if binary and rest != (None, None, None):
            raise ValueError("binary mode takes no encoding, errors or newline argument")

        def perform() -> _WatchedFile:
            kind = "".join(letter for letter in mode if letter in "rwxa+")
            return _WatchedFile(interceptor, file, kind, closefd, opener)

        operation = Operation("open", _absolute(file))
        raw = interceptor(Call(operation, perform, perform)) if is_new else perform()
        return _buffered(raw, mode, buffering, rest)

    return call


def _buffered(
    raw: io.FileIO, mode: str, buffering: int, rest: tuple[str | None, str | None, str | None]
) -> IO[Any]:
    """Return what `open` returns for a file of the lowest layer."""
    if buffering == 0:
        return cast(IO[Any], raw)
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw, size)
    if "b" in mode:
        return buffered
    text = io.TextIOWrapper(buffered, *rest, line_buffering=buffering == 1)
    cast(Any, text).mode = mode
    return text
