"""Copy the files of a checkpoint and compare the copies, here or in the workers of an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.runtime.jobs import UNIT_BYTES, run_units
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.runtime.loop import run_sync
from orbit_ckpt._src.storage.copy_units import CopiedRange, CopyUnit, FileRange, copy_unit
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.directory import Directory
from orbit_ckpt._src.storage.located import is_shared
from orbit_ckpt._src.storage.store_path import read_blocks

Advance = Callable[[int], object]
Differing = str | None
"""The first file whose copy differs from what was read, None if none does."""


def copy_here(
    source: Path, files: Mapping[str, int], copied: Directory, target: Path, advance: Advance
) -> Differing:
    """Copy files and read the copies back.

    Args:
        source: Their directory.
        files: Their names, and their sizes in bytes.
        copied: The directory to copy to.
        target: Its path.
        advance: Called with the bytes copied or compared since its last call.
    """
    sums = {name: copied.copy_file(source / name, name, advance) for name in files}
    copied.sync_files()
    return next((n for n in files if _sum(target / n, advance) != sums[n]), None)


def copy_there(
    source: Path,
    files: Mapping[str, int],
    copied: Directory,
    target: Path,
    advance: Advance,
    *,
    executor: Executor,
) -> Differing:
    """Copy files as `copy_here` does, in the workers of an executor.

    Files on a disk are cut into byte ranges; objects of a store are copied one by one.
    """
    if not (is_shared(source) and is_shared(target)):
        return copy_here(source, files, copied, target, advance)
    is_local = copied.has_local_files and directory_of(source).has_local_files
    if is_local:
        for name, nbytes in files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with (target / name).open("xb") as file:
                file.truncate(nbytes)
    ranges = list(_ranges(files, in_parts=is_local))
    done = _run(source, target, ranges, executor, advance)
    copied.sync_files()
    found = _run(target, None, ranges, executor, advance)
    pairs = zip(ranges, done, found, strict=True)
    return next((part.name for part, before, after in pairs if before != after), None)


def _run(
    source: Path,
    target: Path | None,
    ranges: list[FileRange],
    executor: Executor,
    advance: Advance,
) -> list[CopiedRange]:
    def units() -> Iterator[CopyUnit]:
        # an object may be of any size
        for group, _ in batched(ranges, lambda part: part.nbytes or UNIT_BYTES, UNIT_BYTES):
            yield CopyUnit(source, target, group)

    def finished(_: CopyUnit, done: list[CopiedRange]) -> None:
        advance(sum(part.nbytes for part in done))

    results = run_sync(run_units(executor, copy_unit, units(), finished=finished))
    return [part for result in results for part in result]


def _ranges(files: Mapping[str, int], *, in_parts: bool) -> Iterator[FileRange]:
    for name, nbytes in files.items():
        if not in_parts:
            yield FileRange(name, 0, None)
            continue
        for start in range(0, nbytes, UNIT_BYTES):
            yield FileRange(name, start, min(UNIT_BYTES, nbytes - start))


def _sum(file: Path, advance: Advance) -> int:
    checksum = 0
    for block in read_blocks(file):
        checksum = crc32c(block, checksum)
        advance(len(block))
    return checksum
