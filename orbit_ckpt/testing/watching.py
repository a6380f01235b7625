"""Watch the methods of plug-ins, and the files that they leave."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

_BOOKKEEPING = (
    "commit_success.txt",
    "_CHECKPOINT_METADATA",
    "orbit_manifest.json",
    "manifest.ocdbt",
)
"""Files that record times and random names."""

_RANDOM_NAME = re.compile(r"\b[0-9a-f]{32}\b")


@contextlib.contextmanager
def calls_of(owner: object, method: str) -> Generator[list[tuple[Any, ...]]]:
    """Record the arguments of every call of a method in a `with` block.

    The method is replaced in the class that defines it, so that capabilities, which depend on where
    methods are defined, stay as they are.

    Args:
        owner: An object.
        method: The name of one of its methods.
    """
    definer = next(cls for cls in type(owner).__mro__ if method in vars(cls))
    original: Callable[..., object] = vars(definer)[method]
    calls: list[tuple[Any, ...]] = []

    def watched(self: object, *args: Any, **kwargs: Any) -> object:
        if self is owner:
            calls.append((*args, *kwargs.values()))
        return original(self, *args, **kwargs)

    with mock.patch.object(definer, method, watched):
        yield calls


class ReadCount:
    """How many bytes were read.

    Attributes:
        nbytes: The bytes so far.
    """

    nbytes = 0


@contextlib.contextmanager
def count_reads() -> Generator[ReadCount]:
    """Count the bytes that Python code reads from files in a `with` block, mapped ones apart."""
    count = ReadCount()

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = read(*args, **kwargs)
            count.nbytes += found if isinstance(found, int) else len(found)
            return found

        return call

    def open_counted(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = unwatched(path, mode, *args, **kwargs)
        return _CountedFile(file, counted) if mode in {"r", "rb"} else file

    unwatched = cast(Callable[..., Any], builtins.open)
    with contextlib.ExitStack() as stack:
        for module in (builtins, io):
            stack.enter_context(mock.patch.object(module, "open", open_counted))
        for name in ("preadv", "pread", "read"):
            if hasattr(os, name):
                stack.enter_context(mock.patch.object(os, name, counted(getattr(os, name))))
        yield count


class _CountedFile:
    """A file whose reads are counted."""

    def __init__(self, file: Any, counted: Callable[..., Any]) -> None:
        self._file = file
        for name in ("read", "readinto", "readline"):
            setattr(self, name, counted(getattr(file, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _CountedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.readline, self.readline()[:0])


def files_below(path: Path) -> dict[str, bytes]:
    """Return the contents of a file, or of every file below a directory, by relative path."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in (path, *sorted(path.rglob("*")))
        if file.is_file()
    }


def stored_data(directory: Path) -> Counter[tuple[str, bytes | None]]:
    """Return what two saves of the same values must have in common.

    That excludes files with times, and the contents of files with random names, which refer to one
    another by these.
    """
    return Counter(
        (_RANDOM_NAME.sub("*", name), None if _RANDOM_NAME.search(name) else data)
        for name, data in files_below(directory).items()
        if name.rpartition("/")[2] not in _BOOKKEEPING
    )
