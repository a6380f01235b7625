"""Format results as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from benchmarks.operations import OPERATIONS, PARTIAL, RESHARD
from benchmarks.results import Group, Results, Row, Training, TrainingRow

_BASELINES = ("orbit_ckpt", "orbax")
_RATIOS = [f"/ {name}" for name in _BASELINES]
_HEADER = (
    *("operation", "contender", "median", "range", *_RATIOS),
    *("processor", *_RATIOS, "peak memory", "/ tree", "read", "/ asked"),
)
_TRAINING_HEADER = (
    *("contender", "steps alone", "added by saves", "processor"),
    *("blocked first", "later", "a step alone", "after a save"),
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
    title = f"{group.tree} on {group.storage}: {group.leaves:,} leaves, {size(group.nbytes)}"
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


def training_table(training: Training) -> str:
    """Return the figures of training loops on one tree.

    The columns are the median time of the steps without saves, what the saves add to the wall and
    processor time of a run (median and least), how long the first save blocks and the others do
    (median and least), and the median time of a step alone and of one right after a save.
    """
    donating = "donating" if training.donate else "not donating"
    title = (
        f"training {training.tree}, {donating}, on {training.storage}: {training.steps} steps, "
        f"{training.leaves:,} leaves, {size(training.nbytes)}"
    )
    lines = [_TRAINING_HEADER, *map(_training_cells, training.rows)]
    return "\n".join([title, *_align(lines), ""])


def training_verdicts(training: Training) -> str:
    """Return whether each contender saved one tree correctly while it changed."""

    def verdict(row: TrainingRow) -> str:
        return "FAILED" if row.error else "ok" if row.is_done else "-"

    said = ", ".join(f"{row.contender} {verdict(row)}" for row in training.rows)
    donating = "donating" if training.donate else "not donating"
    return f"training {training.tree}, {donating}, on {training.storage}: {said}"


def failures(results: Results) -> str:
    """Return every error with its traceback."""
    return "\n\n".join(f"FAILED: {what}\n{error}" for what, error in results.errors)


def _training_cells(row: TrainingRow) -> Sequence[str]:
    if not row.is_done:
        return (row.contender, "FAILED" if row.error else "-")
    ranges = (row.added_s, row.added_processor_s, row.later_blocked_s)
    added, processor, blocked = (f"{time(median(r))}, {time(min(r))}" for r in ranges)
    return (
        row.contender,
        time(median(laps.seconds for laps in row.alone)),
        *(added, processor, time(row.first_blocked_s), blocked),
        time(median(row.steps_alone_s)),
        time(median(row.steps_after_s)),
    )


def _cells(group: Group, row: Row) -> Iterator[str]:
    yield row.contender
    if row.median_s is None:
        yield "FAILED" if row.error else "-"
        return
    yield time(row.median_s)
    yield f"{time(min(row.seconds))} - {time(max(row.seconds))}"
    yield from _ratios(group, row, lambda row: row.median_s)
    yield time(row.best_processor_s) if row.best_processor_s is not None else ""
    yield from _ratios(group, row, lambda row: row.best_processor_s)
    peak = median(row.peak_bytes) if row.peak_bytes else None
    yield from ("", "") if peak is None else (size(peak), f"{peak / group.nbytes:.2f}")
    if row.operation in {*RESHARD, *PARTIAL} and row.read_bytes:
        yield size(min(row.read_bytes))
        yield f"{min(row.read_bytes) / asked_bytes(group, row):,.2f}"


def _ratios(group: Group, row: Row, figure: Callable[[Row], float | None]) -> Iterator[str]:
    own = figure(row)
    for name in _BASELINES:
        baseline = group.row(row.operation, name)
        base = figure(baseline) if baseline else None
        yield f"{own / base:.2f}" if own is not None and base else "-"


def _disk_notes(group: Group) -> Iterator[str]:
    for row in group.rows:
        if row.disk:
            beyond = (row.disk.nbytes - group.nbytes) / group.leaves
            yield (
                f"  {row.contender}: {row.disk.files:,} files, {size(row.disk.nbytes)}, "
                f"{beyond:,.0f} bytes per leaf beyond the data"
            )


def _refusals(group: Group) -> Iterator[str]:
    """Yield why contenders were skipped; the table already shows missing operations."""
    for row in group.rows:
        if row.operation == "save" and row.unsupported:
            yield f"  {row.contender}: {row.unsupported}"


def _align(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Pad columns, the first two to the left."""
    count = len(lines[0])
    padded = [[*line, *[""] * (count - len(line))] for line in lines]
    widths = [max(map(len, column)) for column in zip(*padded, strict=True)]
    for line in padded:
        cells = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def time(seconds: float) -> str:
    """Return a duration in milliseconds."""
    ms = seconds * 1e3
    digits = 0 if abs(ms) >= 100 else 1 if abs(ms) >= 10 else 2
    return f"{ms:,.{digits}f} ms"


def size(nbytes: float) -> str:
    """Return a size in MB or kB."""
    return f"{nbytes / 1e6:,.0f} MB" if nbytes >= 10**7 else f"{nbytes / 1e3:,.0f} kB"


def asked_bytes(group: Group, row: Row) -> int:
    """Return the bytes asked for, in which replicas count once."""
    return min(row.asked_bytes, group.nbytes)
