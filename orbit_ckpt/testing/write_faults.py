"""Let writes to the file system fail, and watch them.

Writes of C++ code, such as TensorStore's, are not seen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from typing import TypeVar
from unittest import mock

from orbit_ckpt._src.storage import atomic, system
from orbit_ckpt.testing.hook.files import intercepted
from orbit_ckpt.testing.hook.library import watched_swap
from orbit_ckpt.testing.hook.operations import Call, Interceptor

T = TypeVar("T")

_NAMES = ("open", "mkdir", "rename", "link", "exchange", "fsync")
_DATA = ("write", "truncate")
_DELETIONS = ("unlink", "rmdir")


@contextlib.contextmanager
def before_every_write(
    act: Callable[[str], None], *, deletions: bool = False, data: bool = False
) -> Generator[None]:
    """Call a function before every operation that changes the file system, with its kind.

    Args:
        act: Called with the kind of the operation, such as `mkdir`; what it raises, the operation
            raises.
        deletions: Whether to call it before files and directories are removed, too.
        data: Whether to call it before data is written into a file, too.
    """
    kinds = {*_NAMES, *(_DELETIONS if deletions else ()), *(_DATA if data else ())}
    before = _Before(act, kinds)
    exchange = watched_swap(before, system.exchange)
    with intercepted(before), mock.patch.object(atomic, "_rename_exchange", exchange):
        yield


class _Before(Interceptor):
    """Performs every operation, and calls a function before some kinds of them."""

    def __init__(self, act: Callable[[str], None], kinds: set[str]) -> None:
        self._act = act
        self._kinds = kinds

    def wants(self, path: str) -> bool:
        return os.path.isabs(path)  # else a pipe, a socket or the like

    def __call__(self, call: Call[T], /) -> T:
        if call.operation.kind in self._kinds:
            self._act(call.operation.kind)
        return call.perform()


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
