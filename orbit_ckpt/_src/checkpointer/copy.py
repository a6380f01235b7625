"""Copy a checkpoint as it is; the copy appears complete and verified, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from orbit_ckpt._src.checkpointer.file_copies import copy_here, copy_there
from orbit_ckpt._src.errors import CheckpointNotFoundError, CorruptionError, VersionError
from orbit_ckpt._src.formats.base import (
    Format,
    allows_linked_files,
)
from orbit_ckpt._src.formats.locate import Kind, locate
from orbit_ckpt._src.runtime.checks import (
    as_flag,
    check_callable,
    check_executor,
)
from orbit_ckpt._src.storage.amend import replacing_item
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.integrity import has_lost_manifest
from orbit_ckpt._src.storage.layout import MANIFEST
from orbit_ckpt._src.storage.path import (
    PathLike,
    check_outside,
    explain_no_checkpoint,
    resolve_path,
    storage_errors,
)
from orbit_ckpt._src.verify.report import Damage
from orbit_ckpt._src.verify.verifier import verify_files


def copy(
    src: PathLike,
    dst: PathLike,
    *,
    overwrite: bool = False,
    check: bool = True,
    progress: Callable[[int, int], object] | None = None,
    executor: Executor | None = None,
) -> int:
    """Copy the files of a checkpoint; return their size in bytes.

    Before the copy gets its name, its files are read back and compared with the data read from the
    source.

    Args:
        src: The checkpoint: one step of a run, or another directory that was saved to.
        dst: Path of the copy; its parents are created.
        overwrite: Whether to replace a checkpoint there.
        check: Whether to `verify` the copy too, which detects damage already in the source.
        progress: Called with the bytes copied and compared so far and their total; not called for
            a source in a store, where the total is unknown.
        executor: Where to copy, compare and verify, as for `verify`; its workers see both paths.

    Raises:
        CheckpointNotFoundError: The source is not a checkpoint.
        CheckpointExistsError: The destination exists and `overwrite` is not set.
        ValueError: The source is a single file or a part of another program's checkpoint, or the
            destination is inside it.
        CorruptionError: The copy differs from the source, or the source is damaged.
        VersionError: The source has a version that cannot be verified.
        StorageError: The storage failed; nothing was left behind.

    Example:
        >>> orbit_ckpt.save("run/step_8", {"w": np.ones(3)})
        >>> _ = orbit_ckpt.copy("run/step_8", "kept/step_8")
        >>> orbit_ckpt.load("kept/step_8")["w"].tolist()
        [1.0, 1.0, 1.0]
    """
    is_overwrite = as_flag("overwrite", overwrite)
    is_checked = as_flag("check", check)
    check_callable("progress", progress, "Give one that takes the bytes done and all of them.")
    check_executor(executor)
    source, destination = resolve_path(src), resolve_path(dst)
    foreign = _format_to_copy(source)
    check_outside(destination, source)
    if destination == source:
        raise ValueError(f"{source} would be copied onto itself; give another destination.")
    advice = f"Check that {destination.parent} is a writable directory with space left."
    with storage_errors(source, f"copying to {destination}", advice):
        origin = directory_of(source)
        sizes = origin.files_to_copy(allow_linked_files=allows_linked_files(foreign))
        done, total = 0, 2 * sum(sizes.values()) if origin.knows_sizes else None

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if progress is not None and total is not None:
                progress(min(done, total), total)

        saved = directory_of(destination)
        with saved.begin_save(overwrite=is_overwrite, mode=AtomicityMode.AUTO) as directory:
            copied = directory_of(directory.path)
            run = copy_here if executor is None else partial(copy_there, executor=executor)
            differing = run(source, sizes, copied, directory.path, advance)
            nbytes = done // 2  # each byte was copied and compared
            if differing is not None:
                raise _differs(source / differing, destination)
            if is_checked:
                _verify(directory.path, source, foreign, executor)
            with replacing_item(directory.final) if is_overwrite else contextlib.nullcontext():
                directory.commit()
    return nbytes


def _format_to_copy(source: Path) -> Format | None:
    """Return the other program's format of a checkpoint that can be copied, None for ours."""
    located = locate(source)
    foreign = located.reader
    if foreign is not None and source.is_file():
        raise ValueError(
            f"{source} is one file, a checkpoint of {foreign.name}; copy it as other files are."
        )
    located.check()
    if foreign is None and located.kind is Kind.RUN:
        advice = "Give one step of a run, or another directory that was saved to."
        raise CheckpointNotFoundError(explain_no_checkpoint(source, advice))
    return foreign


def _verify(copied: Path, source: Path, foreign: Format | None, executor: Executor | None) -> None:
    if foreign is not None and foreign.sniff(copied) is not None:
        raise ValueError(f"{source} is a part of a checkpoint of {foreign.name}; copy all of it.")
    findings = verify_files(copied, foreign, executor)
    damage = findings.damage
    if foreign is None and has_lost_manifest(source):  # the copy has none either
        damage = [Damage(source, "it is missing", str(source / MANIFEST)), *damage]
    if damage:
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        shown = str(damage[0]).replace(str(copied), str(source))
        raise CorruptionError(
            f"{source} is damaged: {shown}{more}. Copy an intact checkpoint, or copy this one as "
            "it is with check=False (--no-verify)."
        )
    if findings.unverifiable:
        shown = str(findings.unverifiable[0]).replace(str(copied), str(source))
        raise VersionError(
            f"{source} cannot be verified: {shown} Or copy it unverified, with check=False "
            "(--no-verify)."
        )


def _differs(file: Path, destination: Path) -> CorruptionError:
    return CorruptionError(
        f"{file}: the copy in {destination} does not have the bytes that were read. Nothing was "
        "left there; check the storage and copy again.",
        file=str(file),
    )
