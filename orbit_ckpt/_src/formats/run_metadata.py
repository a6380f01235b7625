"""`metadata.json`, with which eFormer and Levanter mark a checkpoint as complete."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.formats.base import ForeignStep
from orbit_ckpt._src.formats.zarr_find import has_arrays
from orbit_ckpt._src.metadata.codec import decode_file
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.inner_path import inner_file
from orbit_ckpt._src.storage.layout import RUN_METADATA
from orbit_ckpt._src.storage.store_path import StorePath, map_paths
from orbit_ckpt._src.text import shorten_list

_MAX_BYTES = 1 << 20
_MOST_LEVELS = 4
_STEP_NAME = re.compile(r"(?:run|step)-([0-9]+)")
"""Names that eFormer and Levanter give to the directories of steps."""

_logger = logging.getLogger(__name__)


class RunMetadata(Struct, frozen=True):
    """What the file holds.

    Attributes:
        timestamp: When the checkpoint was written, in ISO 8601, in the writer's own time zone
            unless it names one.
        step: The step, -1 if it was not given to the writer.
        is_temporary: Whether the run deletes it once it has saved the next one.
    """

    timestamp: str
    step: int = -1
    is_temporary: bool = False

    @property
    def time(self) -> float:
        """When the checkpoint was written, in seconds since the epoch.

        Raises:
            ValueError: The timestamp is none.
        """
        return datetime.fromisoformat(self.timestamp).timestamp()


def read_run_metadata(directory: Path) -> RunMetadata | None:
    """Read the file in a checkpoint's directory, None if it does not exist.

    Raises:
        FormatError: It is damaged, or another program's.
    """
    file = directory / RUN_METADATA
    if directory_of(file).has_local_files and file.is_dir():
        return None
    try:
        found = decode_file(inner_file(directory, RUN_METADATA), RunMetadata, max_bytes=_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found.time  # noqa: B018 - checked here, where the file is known
    except (ValueError, OverflowError, OSError) as error:
        raise FormatError(f"{file}: timestamp: {error}. The file is damaged.") from error
    return found


def find_mixed(
    directory: Path, metadata: RunMetadata | None, recorded: Mapping[str, object]
) -> str | None:
    """Return the first sign that files of several steps are mixed, None without one.

    Logs it. The step is all that both formats record of the save to which a document belongs.

    Args:
        directory: The checkpoint's directory; its name may have the step.
        metadata: What its `metadata.json` holds.
        recorded: Steps that other documents record, by the name of their file; others than whole
            numbers are ignored.
    """
    if metadata is None or metadata.step < 0:
        return None
    named = _STEP_NAME.fullmatch(directory.name)
    steps = {**recorded, **({"the name of its directory": int(named[1])} if named else {})}
    for place, step in steps.items():
        if type(step) is int and step != metadata.step:
            what = f"{RUN_METADATA} records step {metadata.step}, {place} step {step}"
            _logger.warning(
                "%s: %s: one of them belongs to another checkpoint, and other files may do so too",
                directory,
                what,
            )
            return f"{what}: files of two steps are mixed, or the directory was renamed"
    return None


def first_enclosing(path: Path, is_root: Callable[[Path], bool]) -> Path | None:
    """Return a directory, or the nearest of those around it, that is the root of a checkpoint.

    In a store only some of those around it are asked for, all at once.

    Args:
        path: The directory.
        is_root: Returns whether a directory is.
    """
    if not isinstance(path, StorePath):
        return next((at for at in (path, *path.parents) if is_root(at)), None)
    around = [path, *path.parents][: min(len(path.parts) - 1, _MOST_LEVELS)]
    found = map_paths(is_root, around, root=path)
    return next((at for at, is_one in zip(around, found, strict=True) if is_one), None)


def is_marked(directory: Path) -> bool:
    """Return whether a directory has such a file; one of another program is as good as none."""
    try:
        return read_run_metadata(directory) is not None
    except FormatError:
        return False


def marked_step(path: Path) -> ForeignStep | None:
    """Return the checkpoint with arrays that a directory with the file is, None if it is none."""
    try:
        metadata = read_run_metadata(path)
    except FormatError:
        return None
    if metadata is None or not has_arrays(path):
        return None
    return ForeignStep(metadata.step, path, metadata.time, is_temporary=metadata.is_temporary)


def latest_marked(path: Path) -> Path | None:
    """Return the directory marked last, among a directory and those in it; None without one.

    One whose file is damaged is skipped, with a warning in the log.
    """
    problems: list[FormatError] = []
    found = _marked(path, problems)
    for error in problems:
        _logger.warning("Not taken for a checkpoint: %s", error)
    return max(found)[2] if found else None


def several_message(path: Path) -> str:
    """Return text that says which checkpoints a directory holds, empty if none with arrays."""
    found = _marked(path, [])
    names = sorted(at.name for _, _, at in found if at != path)
    if not any(has_arrays(path / name) for name in names):
        return ""
    several = f"; it holds several checkpoints ({shorten_list(names, 8)})"
    return f"{several}: give one, {max(found)[2]} is the latest"


def _marked(path: Path, problems: list[FormatError]) -> list[tuple[float, int, Path]]:
    """Return time, step and directory of what is marked as a checkpoint; note damaged files."""

    def read(directory: Path) -> RunMetadata | FormatError | None:
        try:
            return read_run_metadata(directory)
        except FormatError as error:
            return error

    directories = [path, *sorted(path.iterdir())] if path.is_dir() else []
    found: list[tuple[float, int, Path]] = []
    read_all = map_paths(read, directories, root=path)
    for directory, metadata in zip(directories, read_all, strict=True):
        if isinstance(metadata, FormatError):
            problems.append(metadata)
        elif metadata is not None:
            found.append((metadata.time, metadata.step, directory))
    return found
