"""Check every byte of checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from orbit_ckpt._src.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    UnsafePathError,
)
from orbit_ckpt._src.formats.base import Format, allows_linked_files
from orbit_ckpt._src.formats.locate import locate_run
from orbit_ckpt._src.formats.orbax import check_complete, holds_tree
from orbit_ckpt._src.formats.registry import check_reader, foreign_format
from orbit_ckpt._src.items.infer import handler_class_in
from orbit_ckpt._src.items.json import JsonHandler
from orbit_ckpt._src.items.unchanged import read_unchanged
from orbit_ckpt._src.metadata.files import read_step
from orbit_ckpt._src.pytree.verification import Damage, Unchecked, Unverifiable, VerifyReport
from orbit_ckpt._src.pytree.verify import Findings, verify_tree
from orbit_ckpt._src.pytree.verify_foreign import verify_foreign
from orbit_ckpt._src.runtime.checks import check_callable, check_int
from orbit_ckpt._src.runtime.limiter import ByteLimiter
from orbit_ckpt._src.runtime.loop import run_all, run_sync
from orbit_ckpt._src.storage.atomic import is_in_progress, looks_like_checkpoint
from orbit_ckpt._src.storage.inner_path import InnerFiles, check_name, sizes_below
from orbit_ckpt._src.storage.integrity import CheckedDirectory, has_lost_manifest
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
from orbit_ckpt._src.storage.object_commit import is_committed
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.path import (
    explain_no_checkpoint,
    identity,
    resolve_path,
    storage_errors,
)
from orbit_ckpt._src.storage.store_path import StorePath, is_damage, map_paths
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY

__all__ = ["Damage", "Unchecked", "Unverifiable", "VerifyReport", "verify"]

_MAX_BYTES = 1 << 28
_MEASURE_BYTES = 1 << 22
_TREES = ("PyTreeCheckpointHandler", "StandardCheckpointHandler")
_UNRECORDED = frozenset({MANIFEST, COMMIT_MARKER, IN_PROGRESS, PINNED})

Progress = Callable[[int, int], object]
"""Called with the bytes checked so far, and how many there are, about."""


def verify(
    path: str | os.PathLike[str],
    *,
    max_bytes: int = _MAX_BYTES,
    progress: Progress | None = None,
    reader: Format | None = None,
) -> VerifyReport:
    """Read every byte of a checkpoint again and compare all checksums; touches no device.

    Checked are the manifests and all files that they record, the documents, the index of a
    database, and every chunk of every array, with its checksum and by decoding it. What the index
    or a manifest names has to be there. Damage does not end the check: all of it is in the report.

    What other writers have left without checksums is decoded or parsed, which finds what would
    make a load fail; the report says what that is. So it is with checkpoints of other programs, of
    which all leaves are decoded. What is of a later version, or of one that is not read any more,
    cannot be verified: the report says so, and the rest is checked. That the manifest of a
    checkpoint of `orbit_ckpt` is gone is damage.

    A checkpoint that another process replaces meanwhile is checked again. Steps of a run that are
    deleted meanwhile are left out.

    Args:
        path: A checkpoint, an item of one, or a run, whose finished steps are all checked; of any
            format that `load` reads.
        max_bytes: About how many bytes to hold at once. More is held for larger chunks that only
            TensorStore can decode.
        progress: Called now and then.
        reader: The format to read it as, as for `load`; of a run only the step that it chooses is
            checked.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; says what is there.
        IncompleteCheckpointError: The save did not finish.
        StorageError: A directory cannot be read, or other processes replace the checkpoint again
            and again while it is read.
        ValueError: `max_bytes` is not positive.

    Example:
        >>> orbit_ckpt.save("run/step_4", {"w": np.ones((2, 3)), "step": 4})
        >>> report = orbit_ckpt.verify("run/step_4")
        >>> report.is_intact, report.leaves, report.damage
        (True, 2, ())
    """
    check_int("max_bytes", max_bytes, least=1)
    check_callable("progress", progress, "Give one that takes the bytes done and all of them.")
    root = resolve_path(path)
    check_reader(reader)
    with storage_errors(root, "checking", "Check that it is a directory that may be read."):
        listed, unfinished = ({root: reader}, 0) if reader else read_unchanged([root], _look_at)
        sizes = {path: _sizes(path, foreign)[0] for path, foreign in listed.items()}
        findings = _new_findings(max_bytes, sum(map(sum, sizes.values())), progress)
        findings.skip(root, "saves that did not finish", unfinished)
        checkpoints: list[Path] = []
        for checkpoint, foreign in listed.items():
            found = _verify_unchanged(checkpoint, findings, foreign, may_vanish=checkpoint != root)
            if found is not None:
                checkpoints.append(checkpoint)
                findings.add_all(found)
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
    )


def verify_files(directory: Path, foreign: Format | None = None) -> Findings:
    """Check a checkpoint that need not be finished, such as a copy being made.

    Args:
        directory: Where it is.
        foreign: The other program's format that it has, None for our own and Orbax's.
    """
    sizes, _ = _sizes(directory, foreign)
    findings = _new_findings(_MAX_BYTES, sum(sizes), None)
    run_sync(_verify_one(directory, findings, foreign))
    return findings


def _new_findings(max_bytes: int, total: int, progress: Progress | None) -> Findings:
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(min(done, total), total)

    return Findings(ByteLimiter(max_bytes), advance)


def _verify_unchanged(
    checkpoint: Path, around: Findings, foreign: Format | None, *, may_vanish: bool
) -> Findings | None:
    """Check a checkpoint that other processes may replace; again if one does.

    Args:
        checkpoint: The checkpoint.
        around: Whose byte budget and progress are used.
        foreign: The other program's format that it has.
        may_vanish: Whether it may be deleted meanwhile.

    Returns:
        What was found; None if it was deleted.

    Raises:
        CheckpointError: It cannot be read, or is replaced again and again.
    """

    async def check(path: Path) -> Findings:
        found = Findings(around.limiter, around.progress)
        await _verify_one(path, found, foreign)
        return found

    try:
        return read_unchanged([checkpoint], check)
    except CheckpointError as error:
        if identity(checkpoint) is not None:
            raise
        if may_vanish:
            return None
        raise CheckpointNotFoundError(
            f"{checkpoint} was deleted while it was checked. Give a checkpoint that is kept."
        ) from error


async def _verify_one(checkpoint: Path, findings: Findings, foreign: Format | None) -> None:
    if not isinstance(checkpoint, StorePath):
        for error in _sizes(checkpoint, foreign)[1]:
            findings.note(checkpoint, error)
    if foreign is not None:
        await verify_foreign(checkpoint, foreign, findings)
    else:
        await _verify_directory(checkpoint, findings, checkpoint)


async def _look_at(root: Path) -> tuple[Mapping[Path, Format | None], int]:
    """Return the checkpoints at a path with the formats of other programs; and what is unfinished.

    Raises:
        CheckpointNotFoundError: There is none.
        IncompleteCheckpointError: It is a save that did not finish.
    """
    run = locate_run(root)
    if any(step.reader is not None for step in run.steps):
        return {step.path: step.reader for step in run.steps}, len(run.unfinished)
    foreign = None
    if isinstance(root, StorePath):
        try:
            return _checkpoints(root)
        except CheckpointNotFoundError:
            foreign = foreign_format(root)
            if foreign is None:
                raise
    else:
        with contextlib.suppress(UnsafePathError):  # which is reported as damage
            foreign = foreign_format(root)
    if foreign is not None:
        return {root: foreign}, 0
    check_complete(root)
    return _checkpoints(root)


def _checkpoints(root: Path) -> tuple[Mapping[Path, None], int]:
    """Return the checkpoints at a path: itself, or those in it; and how many are unfinished.

    Raises:
        CheckpointNotFoundError: There is none.
    """
    if isinstance(root, StorePath):
        return _checkpoints_in_store(root)
    if _is_checkpoint(root):
        return {root: None}, 0
    found: list[Path] = []
    unfinished = 0
    for child in sorted(root.iterdir(), key=_order):
        if not child.is_dir():
            continue
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            if is_temporary_name(child.name) or is_in_progress(child):
                unfinished += 1
            elif _is_checkpoint(child):
                found.append(child)
    if not found:
        advice = "Give the directory that was saved to, or the one with the steps of a run."
        raise CheckpointNotFoundError(explain_no_checkpoint(root, advice))
    return dict.fromkeys(found), unfinished


def _checkpoints_in_store(root: StorePath) -> tuple[Mapping[Path, None], int]:
    if is_committed(root):
        return {root: None}, 0
    names = [root / name for name in root.directories()]
    there = map_paths(is_committed, names, root=root)
    found: list[Path] = [path for path, is_there in zip(names, there, strict=True) if is_there]
    if not found:
        check_complete(root)  # which says what is wrong
    others = [path for path, is_there in zip(names, there, strict=True) if not is_there]
    unfinished = sum(map_paths(is_in_progress, others, root=root))
    return dict.fromkeys(sorted(found, key=_order)), unfinished


def _order(path: Path) -> tuple[int, str]:
    digits = path.name[len(path.name.rstrip("0123456789")) :]
    return int(digits or 0), path.name


def _is_checkpoint(path: Path) -> bool:
    return looks_like_checkpoint(path) or holds_tree(path)


async def _verify_directory(directory: Path, findings: Findings, checkpoint: Path) -> None:
    """Check a checkpoint or an item, and what is below it."""
    try:
        checked = CheckedDirectory(directory)
    except CheckpointError as error:
        findings.note(checkpoint, error)
        findings.skip(directory, "directory, because its manifest cannot be read", 1)
        return
    if checked.manifest is None and has_lost_manifest(directory):
        what = "it is missing: nothing tells whether the other files are those that were saved"
        findings.note(checkpoint, damaged_file(directory / MANIFEST, what))
    await _verify_recorded(checked, findings, checkpoint)
    _check_step(checked, findings, checkpoint)
    is_tree = holds_tree(directory)
    if is_tree:
        await verify_tree(checked, GLOBAL_TYPE_HANDLER_REGISTRY, findings, checkpoint)
    elif checked.manifest is None:
        _check_plain_item(directory, findings, checkpoint)
    _check_process_databases(checked, findings, checkpoint)
    for child in _parts(directory, is_tree=is_tree):
        await _verify_directory(child, findings, checkpoint)


def _parts(directory: Path, *, is_tree: bool) -> list[Path]:
    """Return the directories that are checked by themselves; those of leaves are not."""
    return [
        child
        for child in sorted(directory.iterdir())
        if child.is_dir()
        and _is_followed(child)
        and not (is_process_directory(child.name) or is_temporary_name(child.name))
        and (not is_tree or (child / MANIFEST).exists())
    ]


def _is_followed(directory: Path) -> bool:
    """Whether a directory is no link that is reported as damage."""
    if isinstance(directory, StorePath):
        return True
    return InnerFiles(directory.parent).is_followed(directory.name)


async def _verify_recorded(checked: CheckedDirectory, findings: Findings, checkpoint: Path) -> None:
    """Compare all files that a manifest records."""
    manifest = checked.manifest
    if manifest is None:
        documents = sum(entry.is_file() for entry in checked.path.iterdir())
        findings.skip(checked.path, "files without a manifest: read only", documents)
        return

    async def verify_file(name: str, nbytes: int) -> None:
        async with findings.limiter.reserve(min(nbytes, _MEASURE_BYTES)):
            try:
                await asyncio.to_thread(checked.verify, name)
            except CheckpointError as error:
                findings.note(checkpoint, error)
            except OSError as error:
                if not is_damage(error):
                    raise
                file = str(checked.path / name)
                what = f"it cannot be read: {error}"
                findings.add(Damage(checkpoint, what, file))
        findings.count(nbytes)

    await run_all(verify_file(name, record.nbytes) for name, record in manifest.files.items())
    for error in await asyncio.to_thread(checked.check_database_files):
        findings.note(checkpoint, error)
    added = await asyncio.to_thread(checked.unrecorded)
    others = [name for name in added if name not in _UNRECORDED]
    findings.skip(checked.path, "files that the manifest does not record", len(others))
    if manifest.database is None and OCDBT_MANIFEST in manifest.self_checked:
        what = "database of an earlier release, which did not record to which save data belongs"
        findings.skip(checked.path, what, 1)


def _check_process_databases(
    checked: CheckedDirectory, findings: Findings, checkpoint: Path
) -> None:
    """Read the indexes of the databases that processes wrote, which their merging left behind."""
    manifest = checked.manifest
    if manifest is None or manifest.database is None:
        return
    for name in manifest.files:
        part, _, file = name.partition("/")
        if is_process_directory(part) and file == OCDBT_MANIFEST:
            try:
                read_index(checked.inner(part))
            except CheckpointError as error:
                findings.note(checkpoint, error)


def _check_step(checked: CheckedDirectory, findings: Findings, checkpoint: Path) -> None:
    """Check that the items that a step records are there."""
    directory = checked.path
    if not (directory / STEP_METADATA).exists():
        return
    try:
        handlers = read_step(checked).item_handlers
    except CheckpointError as error:
        findings.note(checkpoint, error)
        return
    if isinstance(handlers, str):
        if handlers.endswith(_TREES) and not holds_tree(directory):
            findings.add(Damage(checkpoint, f"there is no tree in {directory}"))
        return
    for name, handler in handlers.items() if isinstance(handlers, Mapping) else ():
        try:
            check_name(name, str(directory / STEP_METADATA))
        except UnsafePathError as error:
            findings.note(checkpoint, error)
            continue
        item = directory / name
        if not item.is_dir() and _is_dropped(checked, name):
            continue
        if not item.is_dir():
            findings.add(Damage(checkpoint, f"item {name!r} is missing", str(item)))
        elif str(handler).endswith(_TREES) and not holds_tree(item):
            findings.add(Damage(checkpoint, f"there is no tree in item {name!r}"))


def _is_dropped(checked: CheckedDirectory, item: str) -> bool:
    """Whether an item was deleted on purpose, which takes it out of the manifest."""
    manifest = checked.manifest
    return manifest is not None and not any(n.startswith(f"{item}/") for n in manifest.files)


def _check_plain_item(directory: Path, findings: Findings, checkpoint: Path) -> None:
    """Parse a JSON item that has no checksums."""
    try:
        if handler_class_in(directory, None) is JsonHandler:
            JsonHandler().restore(directory)
    except CheckpointError as error:
        file = error.file if isinstance(error, CorruptionError) else None
        findings.add(Damage(checkpoint, str(error), file))
    except ValueError:
        return  # a step with several items, or an item of another kind


def _sizes(path: Path, foreign: Format | None) -> tuple[list[int], list[UnsafePathError]]:
    return sizes_below(path, allow_linked_files=allows_linked_files(foreign))
