"""Verify checkpoints byte by byte: their manifest, their items, and all their contents."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path

from orbit_ckpt._src.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    IncompleteCheckpointError,
    UnsafePathError,
)
from orbit_ckpt._src.formats.base import Format, allows_linked_files
from orbit_ckpt._src.formats.locate import Kind, locate
from orbit_ckpt._src.formats.orbax.layout import TREE_HANDLERS, check_item_complete, holds_tree
from orbit_ckpt._src.formats.registry import check_reader
from orbit_ckpt._src.items.json import JsonHandler
from orbit_ckpt._src.items.registry import handler_class_in
from orbit_ckpt._src.metadata.files import read_step
from orbit_ckpt._src.runtime.checks import check_callable, check_executor, check_int
from orbit_ckpt._src.runtime.limiter import ByteLimiter
from orbit_ckpt._src.runtime.loop import run_sync
from orbit_ckpt._src.storage.consistent_read import read_consistently
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.fingerprint import checkpoint_fingerprint
from orbit_ckpt._src.storage.inner_path import check_name, read_inner, sizes_below
from orbit_ckpt._src.storage.integrity import CheckedDirectory, has_lost_manifest, is_marker_text
from orbit_ckpt._src.storage.layout import (
    COMMIT_MARKER,
    IN_PROGRESS,
    MANIFEST,
    OCDBT_MANIFEST,
    PINNED,
    STEP_METADATA,
    is_process_directory,
    is_temporary_name,
)
from orbit_ckpt._src.storage.manifest import damaged_file
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.path import resolve_path, storage_errors
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY
from orbit_ckpt._src.verify.contents import verify_foreign, verify_tree
from orbit_ckpt._src.verify.files import compare_files
from orbit_ckpt._src.verify.report import Findings, VerifyReport
from orbit_ckpt._src.verify.shared import find_shared

_UNRECORDED = frozenset({MANIFEST, COMMIT_MARKER, IN_PROGRESS, PINNED})


_MAX_BYTES = 1 << 28
Progress = Callable[[int, int], object]
"""Called with the bytes checked so far, and the approximate total."""


class Verifier:
    """Checks one checkpoint.

    Attributes:
        findings: The findings so far.
    """

    def __init__(self, findings: Findings) -> None:
        self.findings = findings

    async def check(self, foreign: Format | None) -> None:
        """Check everything.

        Args:
            foreign: The format if another program's, None for our own and Orbax's.
        """
        checkpoint = self.findings.checkpoint
        for error in directory_of(checkpoint).refused_files(
            allow_linked_files=allows_linked_files(foreign)
        ):
            self.findings.record(error)
        if foreign is not None:
            await verify_foreign(checkpoint, foreign, self.findings)
        else:
            await self._check_directory(checkpoint)

    async def _check_directory(self, directory: Path) -> None:
        """Check a checkpoint or an item, and everything below it."""
        try:
            checked = CheckedDirectory(directory)
        except CheckpointError as error:
            self.findings.record(error)
            self.findings.skip(directory, "directory, because its manifest cannot be read", 1)
            return
        if checked.manifest is None and has_lost_manifest(directory):
            what = "it is missing: nothing tells whether the other files are those that were saved"
            self.findings.record(damaged_file(directory / MANIFEST, what))
        self._check_marker(directory)
        await self._check_recorded(checked)
        self._check_items(checked)
        is_tree = holds_tree(directory)
        if is_tree:
            await verify_tree(checked, GLOBAL_TYPE_HANDLER_REGISTRY, self.findings)
        elif checked.manifest is None:
            self._check_plain_item(directory)
        self._check_process_databases(checked)
        for child in _parts(directory, is_tree=is_tree):
            try:
                check_item_complete(child)
            except IncompleteCheckpointError:
                self.findings.add("the save that replaces it did not finish", str(child))
            await self._check_directory(child)

    def _check_marker(self, directory: Path) -> None:
        """Check the content of the commit marker; a load asks only whether it exists."""
        try:
            marker = read_inner(directory, COMMIT_MARKER)
        except FileNotFoundError:
            return
        except UnsafePathError as error:
            self.findings.record(error)
            return
        except IsADirectoryError:
            file = str(directory / COMMIT_MARKER)
            self.findings.add("it is a directory", file)
            return
        if not marker:
            what = "commit marker that is empty: put there by hand, or damaged"
            self.findings.skip(directory, what, 1)
        elif not is_marker_text(marker):
            what = f"it is not what a save writes: {marker[:60]!r}"
            self.findings.record(damaged_file(directory / COMMIT_MARKER, what))

    async def _check_recorded(self, checked: CheckedDirectory) -> None:
        """Compare all files that a manifest records."""
        manifest = checked.manifest
        if manifest is None:
            documents = sum(entry.is_file() for entry in checked.path.iterdir())
            self.findings.skip(checked.path, "files without a manifest: read only", documents)
            return

        await compare_files(checked, manifest.files, self.findings)
        for error in await asyncio.to_thread(checked.check_database_files):
            self.findings.record(error)
        added = await asyncio.to_thread(checked.unrecorded)
        others = [name for name in added if name not in _UNRECORDED]
        self.findings.skip(checked.path, "files that the manifest does not record", len(others))
        if manifest.database is None and OCDBT_MANIFEST in manifest.self_checked:
            what = "database of an earlier release, which did not record to which save data belongs"
            self.findings.skip(checked.path, what, 1)

    def _check_process_databases(self, checked: CheckedDirectory) -> None:
        """Read the indexes of the per-process databases, which remain after the merge."""
        manifest = checked.manifest
        if manifest is None or manifest.database is None:
            return
        for name in manifest.files:
            part, _, file = name.partition("/")
            if is_process_directory(part) and file == OCDBT_MANIFEST:
                try:
                    read_index(checked.inner(part))
                except CheckpointError as error:
                    self.findings.record(error)

    def _check_items(self, checked: CheckedDirectory) -> None:
        """Check that all items recorded for a step exist."""
        directory = checked.path
        if not (directory / STEP_METADATA).exists():
            return
        try:
            handlers = read_step(checked).item_handlers
        except CheckpointError as error:
            self.findings.record(error)
            return
        if isinstance(handlers, str):
            if handlers.endswith(TREE_HANDLERS) and not holds_tree(directory):
                self.findings.add(f"there is no tree in {directory}")
            return
        for name, handler in handlers.items() if isinstance(handlers, Mapping) else ():
            try:
                check_name(name, str(directory / STEP_METADATA))
            except UnsafePathError as error:
                self.findings.record(error)
                continue
            item = directory / name
            if not item.is_dir() and _is_dropped(checked, name):
                continue
            if not item.is_dir():
                self.findings.add(f"item {name!r} is missing", str(item))
            elif str(handler).endswith(TREE_HANDLERS) and not holds_tree(item):
                self.findings.add(f"there is no tree in item {name!r}")

    def _check_plain_item(self, directory: Path) -> None:
        """Parse a JSON item that has no checksums."""
        try:
            if handler_class_in(directory, None) is JsonHandler:
                JsonHandler().restore(directory)
        except CheckpointError as error:
            file = error.file if isinstance(error, CorruptionError) else None
            self.findings.add(str(error), file)
        except ValueError:
            return  # a step with several items, or an item of another kind


def _parts(directory: Path, *, is_tree: bool) -> list[Path]:
    """Return the directories to check separately; directories of leaves are not."""
    place = directory_of(directory)
    return [
        child
        for child in sorted(directory.iterdir())
        if child.is_dir()
        and place.follows(child.name)
        and not (is_process_directory(child.name) or is_temporary_name(child.name))
        and (not is_tree or (child / MANIFEST).exists())
    ]


def _is_dropped(checked: CheckedDirectory, item: str) -> bool:
    """Return whether an item was deleted on purpose, and so left the manifest."""
    manifest = checked.manifest
    return manifest is not None and not any(n.startswith(f"{item}/") for n in manifest.files)


def file_sizes(path: Path, foreign: Format | None) -> tuple[list[int], list[UnsafePathError]]:
    """Return the sizes of a checkpoint's files, and an error for each that leads outside."""
    return sizes_below(path, allow_linked_files=allows_linked_files(foreign))


def verify(
    path: str | os.PathLike[str],
    *,
    max_bytes: int = _MAX_BYTES,
    progress: Progress | None = None,
    reader: Format | None = None,
    executor: Executor | None = None,
) -> VerifyReport:
    """Read every byte of a checkpoint again and compare all checksums; touches no device.

    It checks the manifests and all files that they record, the documents, the index of a database,
    and every chunk of every array, both its checksum and its decoding. Whatever the index or a
    manifest names must exist. Damage does not end the check: the report lists all of it.

    Data that other writers left without checksums is decoded or parsed, which finds what would make
    a load fail; the report lists such data. The same applies to other programs' checkpoints: all
    leaves are decoded. Data of a later version, or of one that is no longer supported, cannot be
    verified: the report says so, and the rest is checked. A missing manifest in a checkpoint of
    `orbit_ckpt` is damage.

    What steps of a run share, by hard links of incremental saves, is read once. Damage in it is
    reported for every step that needs it.

    If another process replaces a checkpoint during the check, it is checked again. Steps of a run
    that are deleted during the check are left out.

    Args:
        path: A checkpoint, an item of one, or a run, whose finished steps are all checked; of any
            format that `load` reads.
        max_bytes: Approximate limit of bytes held at once. Larger chunks that only TensorStore can
            decode exceed it.
        progress: Called now and then.
        reader: The format to read it as, as for `load`; of a run, only the step that it selects is
            checked.
        executor: Where to read files and chunks: a `ProcessPoolExecutor`, or `get_executor()` of a
            Dask client, whose workers see the same files. The report is the same as without one.
            `max_bytes` then applies to each worker. What only this process can read, such as
            `memory://` and chunks that a format computes, is read here.

    Raises:
        CheckpointNotFoundError: No checkpoint exists; the message says what does.
        IncompleteCheckpointError: The save did not finish.
        StorageError: A directory cannot be read, or other processes replace the checkpoint again
            and again while it is read.
        ValueError: `max_bytes` is not positive.
        WorkerLostError: A worker of the executor ended early, and it does not repeat its work.

    Example:
        >>> orbit_ckpt.save("run/step_4", {"w": np.ones((2, 3)), "step": 4})
        >>> report = orbit_ckpt.verify("run/step_4")
        >>> report.is_intact, report.leaves, report.damage
        (True, 2, ())
    """
    check_int("max_bytes", max_bytes, least=1)
    check_callable("progress", progress, "Give one that takes the bytes done and all of them.")
    check_executor(executor)
    root = resolve_path(path)
    check_reader(reader)
    with storage_errors(root, "checking", "Check that it is a directory that may be read."):
        listed, unfinished = ({root: reader}, 0) if reader else read_consistently([root], _look_at)
        sizes = {path: file_sizes(path, foreign)[0] for path, foreign in listed.items()}
        total = _Progress(sum(map(sum, sizes.values())), progress)
        findings = Findings(root, ByteLimiter(max_bytes), total.advance, executor=executor)
        findings.skip(root, "saves that did not finish", unfinished)
        checkpoints: list[Path] = []
        for checkpoint, foreign in listed.items():
            found = _verify_unchanged(checkpoint, findings, foreign, may_vanish=checkpoint != root)
            if found is not None:
                checkpoints.append(checkpoint)
                findings.merge(found)
        deleted = len(listed) - len(checkpoints)
        findings.skip(root, "checkpoints that were deleted while others were checked", deleted)
    return VerifyReport(
        root,
        tuple(checkpoints),
        sum(len(sizes[checkpoint]) for checkpoint in checkpoints),
        findings.leaves,
        findings.chunks,
        findings.nbytes,
        tuple(findings.damage),
        tuple(findings.unchecked),
        tuple(findings.unverifiable),
        find_shared((found.checkpoint, found.file) for found in findings.damage),
    )


def verify_files(
    directory: Path, foreign: Format | None = None, executor: Executor | None = None
) -> Findings:
    """Check a checkpoint that may be unfinished, such as a copy in progress.

    Args:
        directory: Its directory.
        foreign: Its format if another program's, None for our own and Orbax's.
        executor: As for `verify`.
    """
    progress = _Progress(sum(file_sizes(directory, foreign)[0]), None)
    limiter = ByteLimiter(_MAX_BYTES)
    findings = Findings(directory, limiter, progress.advance, executor=executor)
    run_sync(Verifier(findings).check(foreign))
    return findings


class _Progress:
    """Adds up bytes for a user's callback."""

    def __init__(self, total: int, report: Progress | None) -> None:
        self._done, self._total, self._report = 0, total, report

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        if self._report is not None:
            self._report(min(self._done, self._total), self._total)


def _verify_unchanged(
    checkpoint: Path, overall: Findings, foreign: Format | None, *, may_vanish: bool
) -> Findings | None:
    """Check a checkpoint that other processes may replace; repeat if one does.

    Args:
        checkpoint: The checkpoint.
        overall: Provides the byte budget and the progress.
        foreign: Its format if another program's.
        may_vanish: Whether it may be deleted during the check.

    Returns:
        The findings; None if it was deleted.

    Raises:
        CheckpointError: It cannot be read, or is replaced again and again.
    """

    def check(path: Path) -> Findings:
        overall.checked.begin()
        verifier = Verifier(overall.within(path))
        run_sync(verifier.check(foreign))
        return verifier.findings

    try:
        return read_consistently([checkpoint], check)
    except CheckpointError as error:
        if checkpoint_fingerprint(checkpoint) is not None:
            raise
        if may_vanish:
            return None
        raise CheckpointNotFoundError(
            f"{checkpoint} was deleted while it was checked. Give a checkpoint that is kept."
        ) from error


def _look_at(root: Path) -> tuple[Mapping[Path, Format | None], int]:
    """Return the checkpoints at a path with their formats, and the number of unfinished saves.

    A format is None for our own and Orbax's.

    Raises:
        CheckpointNotFoundError: None exists.
        IncompleteCheckpointError: The path is a save that did not finish.
    """
    located = locate(root)
    located.check()
    if located.kind is not Kind.RUN:
        return {root: located.reader}, 0
    return {step.path: step.reader for step in located.run.steps}, len(located.run.unfinished)
