"""Check that all processes saved the same arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.metadata.array_records import ArrayRecord, decode_arrays
from orbit_ckpt._src.metadata.files import arrays_file
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.text import shorten_lines

_LISTED = 10
_THREADS = max(2, min(16, os.cpu_count() or 2))
_AT_ONCE = 64
"""Number of documents held in memory; each has a line for every array."""


def check_agreement(directory: Path, count: int) -> None:
    """Compare the array records of all processes.

    Args:
        directory: The directory of their documents.
        count: Number of processes.

    Raises:
        StorageError: Shape, dtype, division into pieces or chunks of an array differ between
            processes, or only some have it.
        FormatError: A document is not understood.
    """
    first = _read(directory, 0)
    others: dict[bytes, list[int]] = {first: [0]}  # nearly always the bytes are identical
    for process, data in _read_documents(directory, count):
        others.setdefault(data, []).append(process)
    if len(others) == 1:
        return
    records = {
        processes[0]: _decode(data, directory, processes[0]) for data, processes in others.items()
    }
    groups = {processes[0]: processes for processes in others.values()}
    problems = list(_differences(records, groups))
    if not problems:
        return
    raise StorageError(
        f"{directory}: the processes do not save the same tree, or not in the same shardings:\n"
        + "\n".join(shorten_lines(problems, _LISTED))
        + "\nGive all of them the same arrays."
    )


def read_records(directory: Path, count: int) -> dict[int, list[ArrayRecord]]:
    """Return the array records of all processes that have any.

    With several processes, those of leaves that the primary process alone writes are left out.
    """
    found = {
        i: [r for r in _decode(_read(directory, i), directory, i).values() if count == 1 or r.dtype]
        for i in range(count)
    }
    return {process: records for process, records in found.items() if records}


def _read_documents(directory: Path, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield the documents of all processes but the first."""
    processes = iter(range(1, count))
    with Workers(_THREADS, "orbit_ckpt-read") as pool:
        while some := list(islice(processes, _AT_ONCE)):
            yield from zip(some, pool.map(partial(_read, directory), some), strict=True)


def _read(directory: Path, process: int) -> bytes:
    try:
        return (directory / arrays_file(process)).read_bytes()
    except FileNotFoundError:
        return b""  # it has no arrays


def _decode(data: bytes, directory: Path, process: int) -> dict[str, ArrayRecord]:
    where = str(directory / arrays_file(process))
    return {record.name: record for record in decode_arrays(data, where)} if data else {}


def _differences(
    records: Mapping[int, Mapping[str, ArrayRecord]], groups: Mapping[int, Sequence[int]]
) -> Iterator[str]:
    """Yield a line for every array that differs between processes."""
    for name in sorted(
        # the primary process alone writes the others, and may record more of them
        {name for found in records.values() for name, record in found.items() if record.dtype}
    ):
        said: dict[str, list[int]] = {}
        for process, found in records.items():
            said.setdefault(_describe(found.get(name)), []).extend(groups[process])
        if len(said) > 1:
            texts = [f"{_list(sorted(processes))} {text}" for text, processes in said.items()]
            yield f"  {name}: {'; '.join(texts)}"


def _describe(record: ArrayRecord | None) -> str:
    if record is None:
        return "without it"
    keys = f", keys of {record.random_key_impl}" if record.random_key_impl else ""
    extra = f", {json.dumps(record.extra)[:80]}" if record.extra else ""
    return (
        f"with {record.dtype}{list(record.shape or ())} in pieces of {list(record.write_shape)} "
        f"and chunks of {list(record.chunk_shape)}{keys}{extra}"
    )


def _list(processes: Sequence[int]) -> str:
    """Format numbers as text, `process 3`, `processes 0, 2-5`."""
    runs: list[str] = []
    for _, pairs in groupby(enumerate(processes), lambda pair: pair[1] - pair[0]):
        run = [process for _, process in pairs]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return f"{'process' if len(processes) == 1 else 'processes'} {', '.join(runs)}"
