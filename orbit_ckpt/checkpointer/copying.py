"""Copy a checkpoint so that the copy appears complete and checked, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from crc32c import crc32c

from orbit_ckpt.checkpointer.verify import verify_files
from orbit_ckpt.errors import CheckpointNotFoundError, CorruptionError
from orbit_ckpt.formats.orbax import check_complete, holds_tree
from orbit_ckpt.storage.atomic import AtomicDirectory, looks_like_checkpoint, sync_files
from orbit_ckpt.storage.layout import COMMIT_MARKER, is_temporary_name
from orbit_ckpt.storage.path import describe_directory, storage_errors

_BLOCK_BYTES = 1 << 22


def copy_checkpoint(
    source: Path,
    destination: Path,
    *,
    overwrite: bool = False,
    check: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Copy a checkpoint; return how many bytes it has.

    The files are read again from the copy and compared with what was read from the source, before
    the copy gets its name.

    Args:
        source: The checkpoint.
        destination: Where the copy is to be; its parents are made.
        overwrite: Whether to replace a checkpoint there.
        check: Whether to `verify` the copy too, which finds damage that the source has.
        progress: Called with the bytes copied and compared so far, and how many that will be.

    Raises:
        CheckpointNotFoundError: The source is no checkpoint.
        CheckpointExistsError: The destination exists and `overwrite` is not set.
        CorruptionError: The copy differs from the source, or the source is damaged.
        StorageError: The storage failed; nothing was left behind.
    """
    check_complete(source)
    if not (looks_like_checkpoint(source) or holds_tree(source)):
        raise CheckpointNotFoundError(
            f"No checkpoint at {source}: {describe_directory(source)}. Give one step of a run, or "
            "another directory that was saved to."
        )
    if destination.is_relative_to(source):
        raise ValueError(f"{destination} is inside of {source}; give another destination.")
    advice = f"Check that {destination.parent} is a writable directory with space left."
    with storage_errors(source, f"copying to {destination}", advice):
        files = list(_files(source, ""))
        sizes = {name: (source / name).stat().st_size for name in files}
        total = 2 * sum(sizes.values())
        done = 0

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if progress is not None:
                progress(min(done, total), total)

        with AtomicDirectory(destination, overwrite=overwrite) as directory:
            sums = {name: _copy(source / name, directory.path / name, advance) for name in files}
            sync_files(directory.path)
            for name in files:
                if _sum(directory.path / name, advance) != sums[name]:
                    raise _differs(source / name, destination)
            if check:
                _verify(directory.path, source)
            directory.commit()
    return total // 2


def _verify(copied: Path, source: Path) -> None:
    damage = verify_files(copied)
    if damage:
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        shown = str(damage[0]).replace(str(copied), str(source))
        raise CorruptionError(
            f"{source} is damaged: {shown}{more}. Copy an intact checkpoint, or copy this one as "
            "it is with --no-verify."
        )


def _files(root: Path, prefix: str) -> Iterator[str]:
    """Yield the files to copy; the marker is written when the copy is complete."""
    for child in sorted((root / prefix).iterdir() if prefix else root.iterdir()):
        name = f"{prefix}{child.name}"
        if child.is_dir():
            if not is_temporary_name(child.name):
                yield from _files(root, f"{name}/")
        elif name != COMMIT_MARKER:
            yield name


def _copy(source: Path, destination: Path, advance: Callable[[int], object]) -> int:
    destination.parent.mkdir(parents=True, exist_ok=True)
    checksum = 0
    with source.open("rb") as reading, destination.open("xb") as writing:
        while block := reading.read(_BLOCK_BYTES):
            writing.write(block)
            checksum = crc32c(block, checksum)
            advance(len(block))
    return checksum


def _sum(file: Path, advance: Callable[[int], object]) -> int:
    checksum = 0
    with file.open("rb") as reading:
        while block := reading.read(_BLOCK_BYTES):
            checksum = crc32c(block, checksum)
            advance(len(block))
    return checksum


def _differs(file: Path, destination: Path) -> CorruptionError:
    return CorruptionError(
        f"{file}: the copy in {destination} does not have the bytes that were read. Nothing was "
        "left there; check the storage and copy again.",
        file=str(file),
    )
