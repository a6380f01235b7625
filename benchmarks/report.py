"""Format results as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from benchmarks.operations import OPERATIONS, PARTIAL, RESHARD
from benchmarks.results import Group, Results, Row

_BASELINES = ("orbit_ckpt", "orbax")
_RATIOS = [f"/ {name}" for name in _BASELINES]
_HEADER = (
    *("operation", "contender", "median", "range", *_RATIOS),
    *("processor", *_RATIOS, "peak memory", "/ tree", "read", "/ asked"),
)


def heading(results: Results) -> str:
    """Return the machine of a run, and the contenders that could not take part."""
    lines = [", ".join(f"{name} {value}" for name, value in results.machine.items())]
    if "order_seed" in results.options:
        lines.append(f"Random order of seed {results.options['order_seed']}")
    lines += [f"Left out: {name} ({reason})" for name, reason in results.left_out.items()]
    return "\n".join(lines)


def table(group: Group) -> str:
    """Return the figures of one tree.

    Columns after the median are the fastest and slowest round, the median as a multiple of each
    baseline's, the least processor time of a round and the same multiples of it, the additional
    memory, also as a multiple of the tree, and the bytes read, also as a multiple of those that
    were asked for.
    """
    compression = "compressed" if group.compression else "not compressed"
    title = f"{group.tree} on {group.storage}: {group.leaves:,} leaves, {_size(group.nbytes)}"
    lines: list[Sequence[str]] = [_HEADER]
    for operation, kind in OPERATIONS.items():
        rows = [row for row in group.rows if row.operation == operation]
        labels = [kind.label] + [""] * len(rows)
        lines += [(labels[i], *_cells(group, row)) for i, row in enumerate(rows)]
    notes = [*_disk_notes(group), *_refusals(group)]
    return "\n".join([f"{title}, {compression}", *_align(lines), *notes, ""])


def verdicts(group: Group) -> str:
    """Return whether each contender loaded one tree correctly, without figures."""

    def verdict(contender: str) -> str:
        rows = [row for row in group.rows if row.contender == contender]
        if any(row.error for row in rows):
            return "FAILED"
        return "ok" if any(row.seconds for row in rows) else "-"

    contenders = dict.fromkeys(row.contender for row in group.rows)
    said = ", ".join(f"{contender} {verdict(contender)}" for contender in contenders)
    return f"{group.tree} on {group.storage}: {said}"


def failures(results: Results) -> str:
    """Return every error with its traceback."""
    return "\n\n".join(
        f"FAILED: {row.contender}, {OPERATIONS[row.operation].label}, "
        f"{group.tree} on {group.storage}\n{row.error}"
        for group, row in results.errors
    )


def _cells(group: Group, row: Row) -> Iterator[str]:
    yield row.contender
    if row.median_s is None:
        yield "FAILED" if row.error else "-"
        return
    yield _time(row.median_s)
    yield f"{_time(min(row.seconds))} - {_time(max(row.seconds))}"
    yield from _ratios(group, row, lambda row: row.median_s)
    yield _time(row.best_processor_s) if row.best_processor_s is not None else ""
    yield from _ratios(group, row, lambda row: row.best_processor_s)
    peak = median(row.peak_bytes) if row.peak_bytes else None
    yield from ("", "") if peak is None else (_size(peak), f"{peak / group.nbytes:.2f}")
    if row.operation in {*RESHARD, *PARTIAL} and row.read_bytes:
        yield _size(min(row.read_bytes))
        yield f"{min(row.read_bytes) / _asked(group, row):,.2f}"


def _ratios(group: Group, row: Row, figure: Callable[[Row], float | None]) -> Iterator[str]:
    own = figure(row)
    for name in _BASELINES:
        baseline = group.row(row.operation, name)
        base = figure(baseline) if baseline else None
        yield f"{own / base:.2f}" if own is not None and base else "-"


def _asked(group: Group, row: Row) -> int:
    """Return the bytes asked for, in which replicas count once."""
    return min(row.asked_bytes, group.nbytes)


def _disk_notes(group: Group) -> Iterator[str]:
    for row in group.rows:
        if row.disk:
            beyond = (row.disk.nbytes - group.nbytes) / group.leaves
            yield (
                f"  {row.contender}: {row.disk.files:,} files, {_size(row.disk.nbytes)}, "
                f"{beyond:,.0f} bytes per leaf beyond the data"
            )


def _refusals(group: Group) -> Iterator[str]:
    """Yield why contenders were skipped; the table already shows missing operations."""
    for row in group.rows:
        if row.operation == "save" and row.unsupported:
            yield f"  {row.contender}: {row.unsupported}"


def _align(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Pad columns, the first two to the left."""
    padded = [[*line, *[""] * (len(_HEADER) - len(line))] for line in lines]
    widths = [max(map(len, column)) for column in zip(*padded, strict=True)]
    for line in padded:
        cells = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def _time(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms"


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB" if nbytes >= 10**7 else f"{nbytes / 1e3:,.0f} kB"
