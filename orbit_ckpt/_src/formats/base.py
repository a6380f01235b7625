"""The interface of other programs' formats: recognized by signs, then opened as a `StoredTree`.

Recognition imports nothing that reads arrays.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

from orbit_ckpt._src.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.stored_tree import StoredTree, TreeParts

_NAMES = ("StoredTree", "TreeParts")
__getattr__ = lazy_getattr(
    globals(), {name: f"orbit_ckpt._src.formats.stored_tree:{name}" for name in _NAMES}
)


@runtime_checkable
class Format(Protocol):
    """Another program's format that can be read.

    Attributes:
        name: Its name in messages.
        extra: The package that reading it needs, as `pip install` takes it; None for none.
    """

    name: str
    extra: str | None

    def sniff(self, path: Path) -> str | None:
        """Return why a path is not of this format, None if it seems to be.

        Examines names and first bytes only, and never raises because of what it finds.

        Args:
            path: A file or directory, which exists.
        """
        ...

    def open(self, path: Path) -> StoredTree:
        """Open what `sniff` accepted; reads no arrays.

        Raises:
            FormatError: It is damaged, or of a version that is not known.
            MissingPackageError: `extra` is not installed.
        """
        ...


@runtime_checkable
class LinkedFiles(Protocol):
    """Optional addition to a `Format`: its files may be links to files elsewhere.

    Attributes:
        allows_linked_files: Whether a file of a checkpoint may be a link to any regular file.
    """

    allows_linked_files: bool


def allows_linked_files(known: Format | None) -> bool:
    """Return whether links in a checkpoint may lead out of it; not in our own format."""
    return isinstance(known, LinkedFiles) and known.allows_linked_files


@runtime_checkable
class WholeReader(Protocol):
    """Optional addition to a `Format`: reads a tree in one go if leaf by leaf is slow."""

    def open_whole(self, path: Path) -> StoredTree:
        """Open what `sniff` accepted, perhaps as a tree with `read_whole`.

        Raises:
            FormatError: It is damaged, or of a version that is not known.
        """
        ...


class ForeignStep(Struct, frozen=True):
    """One checkpoint of another program's run.

    Attributes:
        step: Its number; Flax allows fractions.
        path: Its path.
        time: Time of writing, in seconds since the epoch; None in a store, which does not report
            it.
        is_pinned: Whether the run never deletes it.
        is_temporary: Whether the run deletes it once it has saved the next one.
    """

    step: float
    path: Path
    time: float | None
    is_pinned: bool = False
    is_temporary: bool = False


@runtime_checkable
class StepRecognizer(Protocol):
    """Optional addition to a `Format` of a program that writes runs."""

    def step_at(self, path: Path) -> ForeignStep | None:
        """Return the finished step of a run at a path; None if there is none of this format.

        Looks at names and first bytes only, and never raises because of what it finds.

        Args:
            path: A file or directory, which exists.
        """
        ...


__all__ = [
    "ForeignStep",
    "Format",
    "LinkedFiles",
    "StepRecognizer",
    "StoredTree",
    "TreeParts",
    "WholeReader",
    "allows_linked_files",
]
