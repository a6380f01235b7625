"""Let writes to the file system fail, and watch them.

Writes of C++ code, such as TensorStore's, are not seen.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack
from types import ModuleType
from typing import IO, Any, cast
from unittest import mock

from orbit_ckpt._src.storage import atomic

_Operation = Callable[..., object]


@contextlib.contextmanager
def before_every_write(
    act: Callable[[str], None], *, deletions: bool = False, data: bool = False
) -> Generator[None]:
    """Call a function before every operation that changes the file system, with its name.

    Args:
        act: Called with the name of the operation; what it raises, the operation raises.
        deletions: Whether to call it before files and directories are removed, too.
        data: Whether to call it before data is written into a file, too.
    """

    def watched(name: str, operation: _Operation, changes: Callable[..., bool]) -> _Operation:
        def call(*args: object, **kwargs: object) -> object:
            if changes(*args):
                act(name)
            return operation(*args, **kwargs)

        return call

    def open_watched(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> object:
        is_write = _opens_to_write(path, mode)
        if is_write:
            act("open")
        file = unwatched(path, mode, *args, **kwargs)
        return _WatchedFile(file, act) if data and is_write else file

    unwatched = cast(Callable[..., IO[Any]], builtins.open)
    patches: list[tuple[ModuleType, str, Callable[..., bool]]] = [
        (os, "fsync", _always),
        (os, "mkdir", _makes_directory),
        (os, "rename", _always),
        (os, "replace", _always),
        (os, "link", _always),
        (atomic, "_rename_exchange", _always),
        *([(os, "unlink", _always), (os, "rmdir", _always)] if deletions else []),
        *([(os, "open", _opens_to_write), (os, "writev", _always)] if data else []),
    ]
    with ExitStack() as stack:
        for module in (builtins, io):
            stack.enter_context(mock.patch.object(module, "open", open_watched))
        for owner, name, changes in patches:
            replacement = watched(name, getattr(owner, name), changes)
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


def _always(*_: object) -> bool:
    return True


def _makes_directory(path: str, *_: object) -> bool:
    return not os.path.isdir(path)


def _opens_to_write(_: object, mode: str | int = "r", *__: object) -> bool:
    if isinstance(mode, int):  # of `os.open`
        return bool(mode & (os.O_WRONLY | os.O_RDWR))
    return bool(set(mode) & set("wxa+"))


class Refusal:
    """Fails the n-th of the operations that `before_every_write` reports.

    Attributes:
        nth: Which operation fails, from 1.
        code: The error number.
        seen: The names of the operations so far.
    """

    def __init__(self, nth: int, code: int) -> None:
        self.nth = nth
        self.code = code
        self.seen: list[str] = []

    def __call__(self, operation: str) -> None:
        """Count an operation.

        Raises:
            OSError: It is the n-th.
        """
        self.seen.append(operation)
        if len(self.seen) == self.nth:
            raise OSError(self.code, os.strerror(self.code), operation)

    @property
    def happened(self) -> bool:
        """Whether the operation has failed."""
        return len(self.seen) >= self.nth


class _WatchedFile:
    """A file that calls a function before something is written into it."""

    def __init__(self, file: IO[Any], act: Callable[[str], None]) -> None:
        self._file = file
        self._act = act

    def write(self, data: object) -> int:
        self._act("write")
        return self._file.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def __enter__(self) -> _WatchedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
