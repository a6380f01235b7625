"""The steps of a run: naming and listing their directories."""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.errors import FormatError, StorageError
from orbit_ckpt._src.formats.runs import RunStep, scan_step
from orbit_ckpt._src.metadata.codec import decode_json
from orbit_ckpt._src.metadata.step_details import read_step_details
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.directory import Directory
from orbit_ckpt._src.storage.inner_path import read_inner, read_listed
from orbit_ckpt._src.storage.layout import (
    AGGREGATE,
    COMMIT_MARKER,
    MANIFEST,
    OCDBT_MANIFEST,
    PINNED,
    STEP_DETAILS,
    STEP_METADATA,
    TREE_METADATA,
    is_temporary_name,
)
from orbit_ckpt._src.storage.path import resolve_path, storage_errors
from orbit_ckpt._src.storage.store_path import map_paths
from orbit_ckpt._src.storage.system import is_directory
from orbit_ckpt._src.text import visible

_OWN_FILES = frozenset({STEP_METADATA, TREE_METADATA, OCDBT_MANIFEST, MANIFEST, COMMIT_MARKER})
_ADVICE = "Check that it is a directory that may be read."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_logger = logging.getLogger(__name__)


@runtime_checkable
class StepParser(Protocol):
    """Converts between steps and names."""

    def build_name(self, step: int, /) -> str:
        """Return the name of a step's directory."""
        ...

    def parse(self, name: str, /) -> int | None:
        """Return the step that a name denotes, None if it denotes none."""
        ...


class FoundStep(Protocol):
    """A step that a `StepFinder` found."""

    @property
    def step(self) -> int:
        """Its number."""
        ...

    @property
    def path(self) -> os.PathLike[str]:
        """Its directory."""
        ...


@runtime_checkable
class StepFinder(Protocol):
    """Names steps, and finds them; the interface of Orbax's `NameFormat`."""

    def build_name(self, step: int, /) -> str:
        """Return the name of a step's directory."""
        ...

    def find_all(self, base_path: Path, /) -> Iterable[FoundStep]:
        """Return the steps below a directory; the first of equal number counts."""
        ...


StepNames = StepParser | StepFinder


@dataclass(frozen=True, slots=True)
class StepPath:
    """Number and directory of a step; Orbax's `step.Metadata`.

    Attributes:
        step: Its number.
        path: Its directory.
    """

    step: int
    path: Path

    @property
    def init_timestamp_nsecs(self) -> int | None:
        """When its save began, in ns since 1970, as its record says; None without one."""
        return _read_times(self.path).init_timestamp_nsecs

    @property
    def commit_timestamp_nsecs(self) -> int | None:
        """When it was committed, in the same way."""
        return _read_times(self.path).commit_timestamp_nsecs

    @property
    def commit_timestamp(self) -> datetime:
        """When it was committed, in UTC: by its record, else by its directory."""
        return _commit_time(self.path, lambda: read_inner(resolve_path(self.path), STEP_METADATA))


@dataclass(frozen=True, slots=True)
class StepRecord(StepPath):
    """A committed step.

    Attributes:
        commit_time: When it was committed, in UTC.
        pinned: Whether it must never be deleted.
        temporary: Whether it is kept only until the next permanent step.
        foreign: Whether another program wrote it.
        items: Names of its items; empty if another program wrote it.
        place: See `RunStep`.
    """

    commit_time: datetime
    pinned: bool = False
    temporary: bool = False
    foreign: bool = False
    items: frozenset[str] = frozenset()
    place: str = ""

    @property
    @override
    def commit_timestamp(self) -> datetime:
        """The same as `commit_time`."""
        return self.commit_time


def as_step(value: object) -> int:
    """Convert a step number to int, also one in an array of one integer, read or lazy.

    Raises:
        TypeError: The value is not an integer.
        ValueError: It is negative.
    """
    try:
        if getattr(value, "shape", None) in {(), (1,)} and hasattr(value, "__array__"):
            value = cast(Any, value).__array__().reshape(()).item()  # also reads a lazy array
        step = None if isinstance(value, bool) else operator.index(cast(Any, value))
    except TypeError:
        step = None
    if step is None:
        raise TypeError(
            f"The step must be an integer, found {show(value)}. Give int(state.step), for example; "
            "the step comes first, as in save(step, tree)."
        )
    if step < 0:
        raise ValueError(f"The step must be at least 0, found {step}. Number steps from 0.")
    return step


def list_steps(root: Path, names: StepNames, *, needs_marker: bool = False) -> list[StepRecord]:
    """Return the committed steps of a run, ascending.

    A step is a directory with a name that `names` accepts that contains checkpoint files, directly
    or in an item's directory; or, on a local disk, another program's checkpoint with such a name.
    Of two with one number, this library's or Orbax's is listed. The step's own documents are not
    validated: with an unreadable time it gets the directory's time (1970 in a store), with
        unreadable details it
    counts as permanent.

    In a store all keys are listed, a thousand per request; a step exists once its marker does.

    Args:
        root: The run's directory; one that does not exist has no steps.
        names: How steps are named.
        needs_marker: Whether a directory without a commit marker is uncommitted.

    Raises:
        StorageError: A directory cannot be read.
        TypeError: `names` cannot name steps.
    """
    with storage_errors(root, "listing steps", _ADVICE):
        records: dict[int, StepRecord] = {}
        found = list(_candidates(root, names))
        read = map_paths(lambda one: read_step(*one, needs_marker=needs_marker), found, root=root)
        for (step, _), record in zip(found, read, strict=True):
            if record is None:
                continue
            other = records.setdefault(step, record)
            if other is not record:
                if other.foreign and not record.foreign:
                    records[step] = record
                _warn_of_duplicate(step, *_used_and_ignored(other, record))
    return [records[step] for step in sorted(records)]


def latest_step(root: Path, names: StepNames) -> StepRecord | None:
    """Return the last step of `list_steps` without reading the earlier ones.

    Raises:
        StorageError: A directory cannot be read.
        TypeError: `names` cannot name steps.
    """
    with storage_errors(root, "looking for the latest step", _ADVICE):
        candidates = sorted(_candidates(root, names), key=lambda found: -found[0])
        for _, same in itertools.groupby(candidates, key=lambda found: found[0]):
            records = [read_step(step, path) for step, path in same]
            own = sorted(filter(None, records), key=lambda record: record.foreign)
            if own:
                return own[0]
        return None


def _candidates(root: Path, names: object) -> Iterator[tuple[int, Path | str]]:
    """Yield directories by name alone; the preferred one of each number comes first."""
    if isinstance(names, StepParser):
        yield from _parsed(root, names)
    elif isinstance(names, StepFinder):
        for found in names.find_all(root):
            path = resolve_path(found.path)
            if not is_temporary_name(path.name):
                yield as_step(found.step), path
    else:
        raise TypeError(
            f"A step name format (name_format) is {names!r}; give a StepNameFormat, or an "
            "object with build_name and either parse or find_all."
        )


def _parsed(root: Path, names: StepParser) -> Sequence[tuple[int, Path | str]]:
    found: list[tuple[bool, str, int, Path | str]] = []
    directory = directory_of(root)
    try:
        entries = directory.entries()
    except FileNotFoundError:
        return []
    for entry in entries:
        if is_temporary_name(entry.name):
            continue
        step = names.parse(entry.name)
        # Flax's are files; an object has no commit marker
        if step is not None and not (directory.has_markers and not entry.is_dir()):
            is_padded = entry.name != names.build_name(step)
            found.append((is_padded, entry.name, as_step(step), entry.path))
    return [(step, place) for _, _, step, place in sorted(found)]


def read_step(step: int, path: Path | str, *, needs_marker: bool = False) -> StepRecord | None:
    """Return the record of a step's directory, None if it is not a committed checkpoint."""
    if not isinstance(path, str) and (directory := directory_of(path)).has_markers:
        return _read_marked(step, directory)
    try:
        found = scan_step(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None  # deleted since the listing, or a link to itself
        raise
    if found is None or (
        needs_marker
        and found.reader is None
        and all(entry.name != COMMIT_MARKER for entry in found.entries)
    ):
        return None
    return record_step(step, found)


def record_step(step: int, found: RunStep) -> StepRecord:
    """Build the record of a local step from the scan of its directory."""
    foreign = found.foreign
    if foreign is not None:
        return StepRecord(
            step,
            found.path,
            _EPOCH + timedelta(seconds=foreign.time or 0),
            pinned=foreign.is_pinned,
            temporary=foreign.is_temporary,
            foreign=True,
        )
    entries = {entry.name: entry for entry in found.entries}
    is_foreign = found.is_bare or _is_early(entries.keys())
    items = [n for n, e in entries.items() if is_directory(e) and not is_temporary_name(n)]
    document = entries.get(STEP_METADATA)
    return StepRecord(
        step,
        found.path,
        _commit_time(found.path, document and (lambda: read_listed(found.path, document))),
        pinned=PINNED in entries,
        temporary=STEP_DETAILS in entries and _is_temporary(found.path),
        foreign=is_foreign,
        items=frozenset() if is_foreign else _shared(frozenset(items)),
        place=found.place,
    )


def _read_marked(step: int, directory: Directory) -> StepRecord | None:
    path, names = directory.path, set(directory.files_below())
    if COMMIT_MARKER not in names:
        return None
    items = frozenset(name.partition("/")[0] for name in names if "/" in name)
    has_document, is_foreign = STEP_METADATA in names, _is_early(names)
    return StepRecord(
        step,
        path,
        _commit_time(path, (lambda: read_inner(path, STEP_METADATA)) if has_document else None),
        pinned=PINNED in names,
        temporary=STEP_DETAILS in names and _is_temporary(path),
        foreign=is_foreign,
        items=frozenset() if is_foreign else _shared(items),
    )


def _is_early(names: Set[str]) -> bool:
    """Return whether an early release of Orbax wrote a step, from the names in its directory."""
    return AGGREGATE in names and not _OWN_FILES & names


@functools.lru_cache(maxsize=64)
def _shared(items: frozenset[str]) -> frozenset[str]:
    """Return one shared set for all steps with the same items."""
    return items


class _Times(Struct):
    """The only fields of a step's document that listing needs."""

    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None


def _read_times(path: Path) -> _Times:
    """Return the times in a step's document; without it or one of them, None."""
    try:
        return decode_json(read_inner(resolve_path(path), STEP_METADATA), _Times, path)
    except StorageError:
        raise  # the store failed to answer
    except (OSError, FormatError):
        return _Times()


def _commit_time(path: Path, read: Callable[[], bytes] | None) -> datetime:
    if read is not None:
        try:
            nsecs = decode_json(read(), _Times, path).commit_timestamp_nsecs
            if nsecs is not None:
                return _EPOCH + timedelta(microseconds=nsecs // 1000)
        except StorageError:
            raise  # the store failed to answer
        except (OSError, FormatError, OverflowError) as error:
            _logger.debug("%s: no commit time, %s", path, error)
    return _EPOCH + timedelta(microseconds=(directory_of(path).modified_ns() or 0) // 1000)


def _is_temporary(path: Path) -> bool:
    try:
        return read_step_details(path).temporary
    except StorageError:
        raise
    except (OSError, FormatError) as error:
        _logger.debug("%s is taken for a permanent step: %s", path, error)
        return False


def _used_and_ignored(first: StepRecord, second: StepRecord) -> tuple[Path, Path]:
    is_second = first.foreign and not second.foreign
    return (second.path, first.path) if is_second else (first.path, second.path)


@functools.lru_cache(maxsize=256)
def _warn_of_duplicate(step: int, used: Path, ignored: Path) -> None:
    """Warn once only, since every save lists the run."""
    places = (visible(str(used)), visible(str(ignored)))
    _logger.warning("Step %d is there twice: %s is used, %s is not", step, *places)
