"""Copy a checkpoint so that the copy appears complete and verified, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from crc32c import crc32c

from orbit_ckpt._src.errors import CheckpointNotFoundError, CorruptionError, VersionError
from orbit_ckpt._src.formats.base import Format, allows_linked_files
from orbit_ckpt._src.formats.locate import Kind, locate
from orbit_ckpt._src.storage.atomic import AtomicDirectory, sync_files
from orbit_ckpt._src.storage.inner_path import InnerFiles, check_name
from orbit_ckpt._src.storage.integrity import has_lost_manifest, replacing_item
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, IN_PROGRESS, MANIFEST, is_temporary_name
from orbit_ckpt._src.storage.object_commit import ObjectDirectory
from orbit_ckpt._src.storage.path import check_outside, explain_no_checkpoint, storage_errors
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.verify.api import verify_files
from orbit_ckpt._src.verify.report import Damage

_BLOCK_BYTES = 1 << 22
_OBJECT_BLOCK_BYTES = 1 << 26


def copy_checkpoint(
    source: Path,
    destination: Path,
    *,
    overwrite: bool = False,
    check: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Copy a checkpoint; return its size in bytes.

    Before the copy gets its name, its files are read back and compared with the data read from the
    source.

    Args:
        source: The checkpoint.
        destination: Path of the copy; its parents are created.
        overwrite: Whether to replace a checkpoint there.
        check: Whether to `verify` the copy too, which detects damage already in the source.
        progress: Called with the bytes copied and compared so far and their total; not called for
            a source in a store, where the total is unknown.

    Raises:
        CheckpointNotFoundError: The source is not a checkpoint.
        CheckpointExistsError: The destination exists and `overwrite` is not set.
        ValueError: The source is a single file or a part of another program's checkpoint, or the
            destination is inside it.
        CorruptionError: The copy differs from the source, or the source is damaged.
        VersionError: The source has a version that cannot be verified.
        StorageError: The storage failed; nothing was left behind.
    """
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
    check_outside(destination, source)
    if destination == source:
        raise ValueError(f"{source} would be copied onto itself; give another destination.")
    advice = f"Check that {destination.parent} is a writable directory with space left."
    with storage_errors(source, f"copying to {destination}", advice):
        sizes = _files(source, allow_linked_files=allows_linked_files(foreign))
        files = list(sizes)
        done, total = 0, None if isinstance(source, StorePath) else 2 * sum(sizes.values())

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if progress is not None and total is not None:
                progress(min(done, total), total)

        with _open(destination, overwrite=overwrite) as directory:
            sums = {name: _copy(source / name, directory.path / name, advance) for name in files}
            nbytes = done
            if not isinstance(directory, ObjectDirectory):
                sync_files(directory.path)
            for name in files:
                if _sum(directory.path / name, advance) != sums[name]:
                    raise _differs(source / name, destination)
            if check:
                _verify(directory.path, source, foreign)
            with replacing_item(directory.final) if overwrite else contextlib.nullcontext():
                directory.commit()
    return nbytes


def _open(destination: Path, *, overwrite: bool) -> AtomicDirectory | ObjectDirectory:
    if isinstance(destination, StorePath):
        return ObjectDirectory(destination, overwrite=overwrite)
    return AtomicDirectory(destination, overwrite=overwrite)


def _verify(copied: Path, source: Path, foreign: Format | None) -> None:
    if foreign is not None and foreign.sniff(copied) is not None:
        raise ValueError(f"{source} is a part of a checkpoint of {foreign.name}; copy all of it.")
    findings = verify_files(copied, foreign)
    damage = findings.damage
    if foreign is None and has_lost_manifest(source):  # the copy has none either
        damage = [Damage(source, "it is missing", str(source / MANIFEST)), *damage]
    if damage:
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        shown = str(damage[0]).replace(str(copied), str(source))
        raise CorruptionError(
            f"{source} is damaged: {shown}{more}. Copy an intact checkpoint, or copy this one as "
            "it is with --no-verify."
        )
    if findings.unverifiable:
        shown = str(findings.unverifiable[0]).replace(str(copied), str(source))
        raise VersionError(
            f"{source} cannot be verified: {shown} Or copy it unverified, with --no-verify."
        )


def _files(root: Path, *, allow_linked_files: bool) -> dict[str, int]:
    """Return the files to copy and their sizes; the marker is written last.

    Raises:
        UnsafePathError: A link or key leads out of the checkpoint, or a link points to itself.
    """
    if isinstance(root, StorePath):
        keys = [key for key in root.keys_below() if key not in {COMMIT_MARKER, IN_PROGRESS}]
        for key in keys:
            check_name(key, str(root))
        return dict.fromkeys(keys, 0)
    files = InnerFiles(root, allow_linked_files=allow_linked_files)
    return {n: size for n, size in files.walk(skip=is_temporary_name) if n != COMMIT_MARKER}


def _copy(source: Path, destination: Path, advance: Callable[[int], object]) -> int:
    checksum = 0
    if isinstance(destination, StorePath):  # an object is uploaded whole
        data = source.read_bytes()
        destination.write_bytes(data)
        advance(len(data))
        return crc32c(data)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with destination.open("xb") as writing:
        for block in _blocks(source):
            writing.write(block)
            checksum = crc32c(block, checksum)
            advance(len(block))
    return checksum


def _blocks(file: Path) -> Iterator[bytes]:
    if isinstance(file, StorePath):
        yield from file.blocks(_OBJECT_BLOCK_BYTES)
        return
    with file.open("rb") as reading:
        while block := reading.read(_BLOCK_BYTES):
            yield block


def _sum(file: Path, advance: Callable[[int], object]) -> int:
    checksum = 0
    for block in _blocks(file):
        checksum = crc32c(block, checksum)
        advance(len(block))
    return checksum


def _differs(file: Path, destination: Path) -> CorruptionError:
    return CorruptionError(
        f"{file}: the copy in {destination} does not have the bytes that were read. Nothing was "
        "left there; check the storage and copy again.",
        file=str(file),
    )
