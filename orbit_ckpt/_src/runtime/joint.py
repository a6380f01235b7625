"""Work that several processes share between writing their parts of a save and its commit."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from msgspec import Struct


class Assignment(Struct, frozen=True):
    """What the primary process has decided.

    Attributes:
        data: What every process that works has to know.
        workers: The processes that work, in the order of their shares. With none, the primary does
            all of the work as it completes the save.
    """

    data: bytes = b""
    workers: Sequence[int] = ()


class JointWork(Protocol):
    """The work on one item; all processes of a save have the same ones."""

    def report(self) -> bytes:
        """Return what the primary process needs to know once this one has written its part."""
        ...

    def assign(self, reports: Sequence[bytes]) -> Assignment:
        """Decide who works; called on the primary process with the reports of all."""
        ...

    def work(self, assignment: Assignment, share: int) -> None:
        """Do one share of the work, and leave its result in the directory of the save."""
        ...


_collecting: ContextVar[dict[str, JointWork] | None] = ContextVar("orbit_ckpt_joint", default=None)
"""Set while the items of a save by several processes are staged."""


@contextlib.contextmanager
def collecting_work(found: dict[str, JointWork]) -> Generator[None]:
    """Add the work that is offered in the block to a dictionary, by directory."""
    token = _collecting.set(found)
    try:
        yield
    finally:
        _collecting.reset(token)


def offer_work(directory: Path, work: JointWork) -> None:
    """Offer work to the save that stages an item, if it is one of several processes.

    Args:
        directory: The directory of the item.
        work: The work.
    """
    found = _collecting.get()
    if found is not None:
        found[str(directory)] = work
