"""Check paths that a checkpoint names before anything is read from them.

Nothing in a checkpoint is trusted: a name in a document, a path in a database's node and a symbolic
link may all lead to files outside it. Every name read from a file becomes a path through
`inner_path`, and every file below a local checkpoint is looked up through `InnerFiles`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from orbit_ckpt._src.errors import CorruptionError, UnsafePathError
from orbit_ckpt._src.storage import system
from orbit_ckpt._src.storage.layout import STEP_METADATA
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.storage.system import is_directory

_MAX_SEGMENT_BYTES = 255
_MAX_NAME_BYTES = 4095
_NEVER = frozenset({"", ".", ".."})
_ON_WINDOWS = os.name == "nt"
_ADVICE = "The checkpoint is damaged or was made to mislead; do not trust it."


def check_name(name: str, where: str) -> None:
    """Check that a name from a file can only refer to something below a directory.

    Args:
        name: The name, with slashes between its segments.
        where: The file that contains it, for messages.

    Raises:
        UnsafePathError: It is absolute or too long, or has a segment that is empty, `.` or `..`, a
            NUL, or on Windows a backslash or a colon.
    """
    problem = _problem_of(name)
    if problem is not None:
        raise UnsafePathError(
            f"{where}: the path {name[:200]!r} {problem}; expected one below the checkpoint's "
            f"directory. {_ADVICE}",
            file=where,
            what=f"the path {name[:200]!r} {problem}",
        )


def is_inner_name(name: str) -> bool:
    """Return whether a name can only refer to something below a directory; see `check_name`."""
    return _problem_of(name) is None


def _problem_of(name: str) -> str | None:
    segments = name.split("/")
    problem = None
    if "\0" in name:
        problem = "has a NUL"
    elif not name:
        problem = "is empty"
    elif name[0] == "/":
        problem = "is absolute"
    elif not {"..", "."}.isdisjoint(segments):
        problem = "has a segment '.' or '..'"
    elif "" in segments:
        problem = "has an empty segment"
    elif _ON_WINDOWS and not {"\\", ":"}.isdisjoint(name):
        problem = "has a backslash or a colon"
    elif len(name) * 4 > _MAX_SEGMENT_BYTES and _is_too_long(segments):
        problem = "is longer than file systems allow"
    return problem


def _is_too_long(segments: list[str]) -> bool:
    sizes = [len(segment.encode("utf-8", "surrogatepass")) for segment in segments]
    return max(sizes) > _MAX_SEGMENT_BYTES or sum(sizes) + len(sizes) - 1 > _MAX_NAME_BYTES


def inner_path(base: Path, name: str, where: str | None = None) -> Path:
    """Return the path of a file that another file of the same checkpoint names.

    Args:
        base: The directory that the name is relative to.
        name: The name in the file.
        where: The file that contains it, for messages; the directory by default.

    Raises:
        UnsafePathError: The name could lead out of the directory, see `check_name`.
    """
    check_name(name, where or str(base))
    return base / name


class InnerFiles:
    """The files below a local directory, except those reached through a link that leads out.

    Links that stay inside are followed, and the root itself may be reached through links. Each
    directory is checked once, so that a file costs one `lstat`.

    Args:
        root: The directory of a checkpoint or of an item; other items of the same checkpoint count
            as inside. Text is for callers that list a run: making it of a `Path` takes longer than
            reading a document.
        allow_linked_files: Whether a file may be a link to any regular file.
    """

    def __init__(self, root: Path | str, *, allow_linked_files: bool = False) -> None:
        self.root = Path(root) if isinstance(root, str) else root
        self._prefix = f"{root}{os.sep}"
        self._allow_linked_files = allow_linked_files
        self._directories: set[str] = set()

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of a file, of the target if it is a link; None if it does not exist.

        Args:
            name: Its path relative to the root.

        Raises:
            UnsafePathError: The name could lead out of the root, a link on the way does, or it is a
                pipe, a socket or a device.
            OSError: It cannot be examined.
        """
        head, slash, last = name.rpartition("/")
        if last in _NEVER or (slash and not head):
            check_name(name, str(self.root))
        try:
            if slash and head not in self._directories and not self._enter(head, name):
                return None
            found = os.lstat(self._prefix + name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, OSError) as error:
            self._refuse(name, error)
        if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
            return found
        if not stat.S_ISLNK(found.st_mode):
            raise self._unsafe(name, "is no regular file", "Remove it from the checkpoint.")
        return self._linked(name)

    def file(self, name: str) -> Path:
        """Return the path of a file, which need not exist; raises what `status` does."""
        if isinstance(self.root, StorePath):
            return inner_path(self.root, name)
        self.status(name)
        return self.root / name

    def read_bytes(self, name: str) -> bytes | None:
        """Return the contents of a file, None if it does not exist.

        Raises:
            UnsafePathError: See `status`.
            OSError: It cannot be read.
        """
        found = self.status(name)
        if found is None:
            return None
        try:
            return _contents(self._prefix + name, found.st_size)
        except FileNotFoundError:
            return None

    def walk(
        self,
        *,
        skip: Callable[[str], bool] = lambda _: False,
        refused: list[UnsafePathError] | None = None,
    ) -> Iterator[tuple[str, int]]:
        """Yield the paths of all files below the root in order, with their sizes.

        Args:
            skip: Returns whether to leave out a directory of a name.
            refused: Collects the errors below; the files that they concern are left out.

        Raises:
            UnsafePathError: A link leads out of the root, to a directory that contains it, or on to
                another link; or an entry is neither a file nor a directory.
            OSError: A directory cannot be read.
        """
        yield from self._walk("", skip, refused, is_linked=False)

    def _walk(
        self,
        prefix: str,
        skip: Callable[[str], bool],
        refused: list[UnsafePathError] | None,
        *,
        is_linked: bool,
    ) -> Iterator[tuple[str, int]]:
        with os.scandir(self._prefix + prefix) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if is_directory(entry) and skip(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(f"{name}/", skip, refused, is_linked=is_linked)
                continue
            try:
                found = self._reached(name, is_linked=is_linked)
            except UnsafePathError as error:
                if refused is None:
                    raise
                refused.append(error)
                continue
            if not stat.S_ISDIR(found.st_mode):
                yield name, found.st_size
            else:
                yield from self._walk(f"{name}/", skip, refused, is_linked=True)

    def _reached(self, name: str, *, is_linked: bool) -> os.stat_result:
        """Return the status of an entry of a walk that is not a directory itself."""
        found = self.status(name)
        if found is None:
            raise self._unsafe(name, "is a link that leads to nothing", "Remove it.")
        if stat.S_ISDIR(found.st_mode) and (is_linked or self._is_loop(name)):
            real = os.path.realpath(self._prefix + name)
            raise self._unsafe(
                name,
                f"is a link to the directory {real}, which leads to it again or to further links",
                "Put the directory itself there.",
            )
        return found

    def _is_loop(self, name: str) -> bool:
        around = os.path.realpath(os.path.dirname(self._prefix + name))
        return _is_below(around, os.path.realpath(self._prefix + name))

    def is_followed(self, name: str) -> bool:
        """Return whether `walk` enters a directory, other than through a link."""
        try:
            return not os.path.islink(self._prefix + name) or not (
                self.status(name) is None or self._is_loop(name)
            )
        except UnsafePathError:
            return False

    def _enter(self, directory: str, name: str) -> bool:
        """Check the directory of a file and its parents; return whether it exists."""
        check_name(name, str(self.root))
        segments = directory.split("/")
        for i in range(len(segments)):
            at = "/".join(segments[: i + 1])
            if at in self._directories:
                continue
            found = os.lstat(self._prefix + at)
            if stat.S_ISLNK(found.st_mode) and self._linked(at, is_directory=True) is None:
                return False
            self._directories.add(at)
        return True

    def _linked(self, name: str, *, is_directory: bool = False) -> os.stat_result | None:
        """Return the status of a link's target, None if that does not exist."""
        link = self._prefix + name
        target = os.path.realpath(link)
        try:
            found = os.stat(link)
        except FileNotFoundError:
            found = None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise self._unsafe(name, "is a link that leads to itself", "Remove it.") from error
        is_file = found is not None and stat.S_ISREG(found.st_mode)
        may_be_outside = self._allow_linked_files and is_file and not is_directory
        if not (may_be_outside or _is_inside(self.root, target, is_file=is_file)):
            raise self._unsafe(
                name,
                f"is a link to {target}, which is outside of the checkpoint",
                "Put what it leads to in its place if you trust it.",
            )
        if found is not None and not (is_file or stat.S_ISDIR(found.st_mode)):
            raise self._unsafe(name, f"is a link to {target}, no regular file", "Remove it.")
        return found

    def _refuse(self, name: str, error: Exception) -> NoReturn:
        """Raise the error that a name is invalid, else the one from looking it up."""
        if isinstance(error, CorruptionError):
            raise error
        check_name(name, str(self.root))
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            raise self._unsafe(name[:200], "is a path longer than file systems allow", _ADVICE)
        raise error

    def _unsafe(self, name: str, problem: str, advice: str) -> UnsafePathError:
        file = self._prefix + name
        return UnsafePathError(
            f"{file} {problem}; expected files and directories inside of it. {advice}",
            file=file,
            what=f"it {problem}",
        )


def _contents(path: str, nbytes: int) -> bytes:
    """Read a whole file; one read suffices if the size is as expected.

    A run of 20,000 steps has 60,000 documents, which a file object reads at half the speed.
    """
    file = system.open_to_read(path)
    try:
        data = os.read(file, nbytes + 1)
        if len(data) == nbytes:
            return data
        parts = [data]
        while data := os.read(file, nbytes + 1):
            parts.append(data)
        return b"".join(parts)
    finally:
        os.close(file)


def inner_file(directory: Path, name: str) -> Path:
    """Return the path of a file or directory in a checkpoint, which need not exist.

    Raises:
        UnsafePathError: The name or a link leads out of the directory.
    """
    if isinstance(directory, StorePath):
        return inner_path(directory, name)
    return InnerFiles(directory).file(name)


def read_inner(directory: Path, name: str) -> bytes:
    """Return the contents of a file of a checkpoint.

    Raises:
        FileNotFoundError: It does not exist.
        UnsafePathError: The name or a link leads out of the directory.
        OSError: It cannot be read.
    """
    if isinstance(directory, StorePath):
        return inner_path(directory, name).read_bytes()
    data = InnerFiles(directory).read_bytes(name)
    if data is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory / name))
    return data


def read_listed(directory: Path, entry: os.DirEntry[str]) -> bytes:
    """Return what `read_inner` does for an entry of a directory, without a second look at it."""
    if not entry.is_file(follow_symlinks=False):
        return read_inner(directory, entry.name)
    return _contents(entry.path, entry.stat(follow_symlinks=False).st_size)


def sizes_below(
    path: Path, *, allow_linked_files: bool = False
) -> tuple[list[int], list[UnsafePathError]]:
    """Return the sizes of a checkpoint's files, and the errors of those that are refused.

    Files that are deleted meanwhile are left out; the sizes of objects in a store are all 0.

    Args:
        path: The checkpoint.
        allow_linked_files: See `InnerFiles`.
    """
    if isinstance(path, StorePath):  # their sizes would take many requests
        return [0] * (len(path.keys_below()) or 1), []
    sizes: list[int] = []
    refused: list[UnsafePathError] = []
    with contextlib.suppress(FileNotFoundError):
        if path.is_file():
            return [path.stat().st_size], []
        files = InnerFiles(path, allow_linked_files=allow_linked_files)
        for _, size in files.walk(refused=refused):
            sizes.append(size)
    return sizes, refused


def _is_inside(root: Path, target: str, *, is_file: bool) -> bool:
    """Return whether a resolved path is below a checkpoint's directory.

    Caches of Hugging Face are inside too: every file of `snapshots/<revision>` is a link to one in
    `blobs`, which only the cache itself writes.
    """
    real = os.path.realpath(root)
    checkpoints = [at for at in (str(root.parent), os.path.dirname(real)) if _is_step(at)]
    roots = [real, *map(os.path.realpath, checkpoints)]
    if any(_is_below(target, at) for at in roots):
        return True
    segments = real.split(os.sep)
    caches = [i for i, segment in enumerate(segments) if segment == "snapshots"]
    around = os.path.dirname(target)
    return is_file and any(around == os.sep.join([*segments[:i], "blobs"]) for i in caches)


def _is_below(path: str, directory: str) -> bool:
    return f"{path}{os.sep}".startswith(f"{directory.rstrip(os.sep)}{os.sep}")


def _is_step(directory: str) -> bool:
    return os.path.lexists(os.path.join(directory, STEP_METADATA))
