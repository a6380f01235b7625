"""The seam between checkpoints and the storage that holds them.

A `Directory` holds a path and answers what its users need to know about the storage there, so that
no layer above distinguishes a disk from an object store. `directories` holds the implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orbit_ckpt._src.errors import UnsafePathError
    from orbit_ckpt._src.storage.atomic import AtomicDirectory, AtomicityMode
    from orbit_ckpt._src.storage.fingerprint import Fingerprint
    from orbit_ckpt._src.storage.objects import ObjectDirectory


class Entry(Protocol):
    """A file or directory found in a directory; `os.DirEntry` is one."""

    @property
    def name(self) -> str:
        """The last part of its path."""
        ...

    @property
    def path(self) -> str | Path:
        """Its path; text if it is local, because making a `Path` takes long."""
        ...

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a directory."""
        ...


class Directory(Protocol):
    """A place in a storage: the directory of a checkpoint, an item or a run, or a single file.

    Attributes:
        path: Its path, for what the storage does alike everywhere and for third-party handlers.
        has_rename: Whether a directory can be renamed in one step. If not, saves and deletions
            happen in place.
        has_local_files: Whether any program can open its files by path.
        has_markers: Whether every complete checkpoint has a commit marker, and only such.
        knows_sizes: Whether sizes of files are known without reading them.
    """

    path: Path
    has_rename: bool
    has_local_files: bool
    has_markers: bool
    knows_sizes: bool

    def is_outage(self, error: BaseException) -> bool:
        """Return whether an error concerns the storage as a whole, not the data read from it."""
        ...

    # contents

    def entries(self) -> list[Entry]:
        """Return what it contains, in any order.

        Raises:
            OSError: It cannot be read.
        """
        ...

    def subdirectories(self) -> list[str]:
        """Return the names of the directories in it, in order."""
        ...

    def subdirectories_with(self, file: str, names: Iterable[str]) -> list[str]:
        """Return those of the named directories that contain a file."""
        ...

    def find_in_children(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield directory and name of the files right below its directories, name by name."""
        ...

    def find_below(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield directory, relative to this one, and name of the files below its directories."""
        ...

    def files_below(self) -> list[str]:
        """Return the paths of all files below it, relative to it, in order."""
        ...

    def files_to_copy(self, *, allow_linked_files: bool) -> dict[str, int]:
        """Return its files with their sizes, 0 if unknown; without the commit marker.

        Raises:
            UnsafePathError: A file leads out of the directory.
        """
        ...

    def nbytes(self) -> int | None:
        """Return the size of all its files, None if unknown."""
        ...

    def modified_ns(self) -> int | None:
        """Return when it was last modified, None if unknown."""
        ...

    def fingerprints(self) -> dict[Path, Fingerprint] | None:
        """Return the fingerprint of each of its files, None if that takes a request for each."""
        ...

    # links

    def follows(self, name: str) -> bool:
        """Return whether a directory in it is no link, or one that stays inside."""
        ...

    def check_links(self, names: Iterable[str], *, allow_linked_files: bool) -> None:
        """Check that files in it are no links that lead outside.

        Raises:
            UnsafePathError: One is.
        """
        ...

    def refused_files(self, *, allow_linked_files: bool) -> list[UnsafePathError]:
        """Return an error for each of its files that leads outside."""
        ...

    # completeness

    def is_unfinished(self) -> bool:
        """Return whether a save into it has begun and not ended."""
        ...

    def is_committed(self) -> bool:
        """Return whether nothing shows that a save into it did not finish."""
        ...

    def check_complete(self, *, needs_marker: bool = False) -> None:
        """Check that it is a committed checkpoint, or part of one.

        Args:
            needs_marker: Whether it must have a commit marker.

        Raises:
            IncompleteCheckpointError: It is a save that did not finish.
            CheckpointNotFoundError: It is not a directory.
        """
        ...

    def unfinished_below(
        self, known: Container[str], is_temporary: Callable[[str], bool]
    ) -> list[str]:
        """Return the names of unfinished saves and conversions in a run, in order.

        Args:
            known: Names of complete steps.
            is_temporary: Returns whether a name is of a save in progress.
        """
        ...

    # changes

    def begin_save(
        self, *, overwrite: bool, mode: AtomicityMode, permissions: int | None = None
    ) -> AtomicDirectory | ObjectDirectory:
        """Return a context that makes a checkpoint appear here complete or not at all.

        Raises:
            ValueError: The storage does not support the mode.
        """
        ...

    def create_document(self, folder: str, name: str, data: bytes) -> None:
        """Write a small file into a folder so that it appears complete or not at all."""
        ...

    def copy_file(self, source: Path, name: str, advance: Callable[[int], object]) -> int:
        """Copy a file into it; return its checksum.

        Args:
            source: The file.
            name: Its path here.
            advance: Called with the number of bytes of each part.
        """
        ...

    def sync_files(self) -> None:
        """Wait until all files below it are durable."""
        ...

    def hide(self, root: Path, subdirectory: str | None) -> Path | None:
        """Take it out of its run in one step; return its new path, None if it is gone already.

        Args:
            root: The run.
            subdirectory: The directory of the run that receives it, None if it is to be deleted.

        Raises:
            OSError: The storage refused; it is unchanged.
        """
        ...

    def sync_hidden(self, original: Path) -> None:
        """Wait until it is durable that `hide` has moved it here."""
        ...

    def delete_hidden(self) -> None:
        """Delete it, which `hide` returned; another process may be deleting it too."""
        ...

    def sweep(self, is_step: Callable[[str], bool], *, everything: bool) -> None:
        """Delete what dead processes left in a run: unfinished saves and deletions.

        Args:
            is_step: Returns whether saves make directories of a name.
            everything: Whether to delete unfinished saves of other writers too, which may still be
                in progress.
        """
        ...
