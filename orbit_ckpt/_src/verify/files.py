"""Compare files with the records of a manifest, here or in the workers of an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor

from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.runtime.jobs import UNIT_BYTES, run_units
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.fingerprint import Fingerprint
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.located import is_shared
from orbit_ckpt._src.storage.manifest import FileRecord, damaged_file
from orbit_ckpt._src.storage.store_path import is_damage
from orbit_ckpt._src.verify.report import Findings
from orbit_ckpt._src.verify.units import FileUnit, measure_unit

_MEASURE_BYTES = 1 << 22

_Problem = CheckpointError | OSError | None


async def compare_files(
    checked: CheckedDirectory, files: Mapping[str, FileRecord], findings: Findings
) -> None:
    """Compare files with their records; damage is recorded in the order of the records.

    Raises:
        OSError: A file cannot be read, which does not prove damage.
    """
    executor = findings.executor
    if executor is None or not is_shared(checked.path):
        problems = await _compare_here(checked, files, findings)
    else:
        problems = await _compare_there(checked, files, findings, executor)
    for name, problem in zip(files, problems, strict=True):
        if isinstance(problem, CheckpointError):
            findings.record(problem)
        elif problem is not None:
            if not is_damage(problem):
                raise problem
            findings.add(f"it cannot be read: {problem}", str(checked.path / name))


async def _compare_here(
    checked: CheckedDirectory, files: Mapping[str, FileRecord], findings: Findings
) -> list[_Problem]:
    problems: dict[str, _Problem] = {}

    async def verify(name: str, nbytes: int) -> None:
        async with findings.limiter.reserve(min(nbytes, _MEASURE_BYTES)):
            try:
                await asyncio.to_thread(checked.verify, name)
            except (CheckpointError, OSError) as error:
                problems[name] = error
        findings.count(nbytes)

    await run_all(verify(name, record.nbytes) for name, record in files.items())
    return [problems.get(name) for name in files]


async def _compare_there(
    checked: CheckedDirectory,
    files: Mapping[str, FileRecord],
    findings: Findings,
    executor: Executor,
) -> list[_Problem]:
    before: dict[str, Fingerprint] = {}
    problems: dict[str, _Problem] = {}
    for name in files:
        try:
            before[name] = checked.fingerprint(name)
        except (CheckpointError, OSError) as error:
            problems[name] = _explained(checked, name, error)
            findings.count(files[name].nbytes)

    def units() -> Iterator[FileUnit]:
        for names, nbytes in batched(before, lambda name: files[name].nbytes, UNIT_BYTES):
            yield FileUnit(checked.path, names, nbytes)

    def finished(unit: FileUnit, _: Sequence[object]) -> None:
        findings.count(unit.nbytes)

    results = await run_units(executor, measure_unit, units(), finished=finished)
    measured = (found for result in results for found in result)
    for name, found in zip(before, measured, strict=True):
        if isinstance(found, FileRecord):
            try:
                checked.compare(name, found, before[name])
            except CheckpointError as error:
                problems[name] = error
        else:
            problems[name] = _explained(checked, name, found)
    return [problems.get(name) for name in files]


def _explained(
    checked: CheckedDirectory, name: str, error: CheckpointError | OSError
) -> CheckpointError | OSError:
    if isinstance(error, FileNotFoundError):
        return damaged_file(checked.path / name, "it is missing")
    return error
