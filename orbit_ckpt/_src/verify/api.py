"""Verify checkpoints byte by byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from orbit_ckpt._src.errors import (
    CheckpointError,
    CheckpointNotFoundError,
)
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.formats.locate import Kind, locate
from orbit_ckpt._src.formats.registry import check_reader
from orbit_ckpt._src.runtime.checks import check_callable, check_int
from orbit_ckpt._src.runtime.limiter import ByteLimiter
from orbit_ckpt._src.runtime.loop import run_sync
from orbit_ckpt._src.storage.fingerprint import checkpoint_fingerprint, read_consistently
from orbit_ckpt._src.storage.path import resolve_path, storage_errors
from orbit_ckpt._src.verify.report import Findings, VerifyReport
from orbit_ckpt._src.verify.verifier import Verifier, file_sizes

_MAX_BYTES = 1 << 28

Progress = Callable[[int, int], object]
"""Called with the bytes checked so far, and the approximate total."""


def verify(
    path: str | os.PathLike[str],
    *,
    max_bytes: int = _MAX_BYTES,
    progress: Progress | None = None,
    reader: Format | None = None,
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

    If another process replaces a checkpoint meanwhile, it is checked again. Steps of a run that are
    deleted meanwhile are left out.

    Args:
        path: A checkpoint, an item of one, or a run, whose finished steps are all checked; of any
            format that `load` reads.
        max_bytes: Approximate limit of bytes held at once. Larger chunks that only TensorStore can
            decode exceed it.
        progress: Called now and then.
        reader: The format to read it as, as for `load`; of a run, only the step that it selects is
            checked.

    Raises:
        CheckpointNotFoundError: No checkpoint exists; the message says what does.
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
        listed, unfinished = ({root: reader}, 0) if reader else read_consistently([root], _look_at)
        sizes = {path: file_sizes(path, foreign)[0] for path, foreign in listed.items()}
        total = _Progress(sum(map(sum, sizes.values())), progress)
        findings = Findings(root, ByteLimiter(max_bytes), total.advance)
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
    )


def verify_files(directory: Path, foreign: Format | None = None) -> Findings:
    """Check a checkpoint that may be unfinished, such as a copy in progress.

    Args:
        directory: Its directory.
        foreign: Its format if another program's, None for our own and Orbax's.
    """
    progress = _Progress(sum(file_sizes(directory, foreign)[0]), None)
    verifier = Verifier(Findings(directory, ByteLimiter(_MAX_BYTES), progress.advance))
    run_sync(verifier.check(foreign))
    return verifier.findings


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
        may_vanish: Whether it may be deleted meanwhile.

    Returns:
        The findings; None if it was deleted.

    Raises:
        CheckpointError: It cannot be read, or is replaced again and again.
    """

    async def check(path: Path) -> Findings:
        verifier = Verifier(Findings(path, overall.limiter, overall.progress))
        await verifier.check(foreign)
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


async def _look_at(root: Path) -> tuple[Mapping[Path, Format | None], int]:
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
