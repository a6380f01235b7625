"""The tables of the documentation, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from statistics import median

from benchmarks.operations import OPERATIONS, PARTIAL, RESHARD, STANDARD
from benchmarks.report import asked_bytes, size, time
from benchmarks.results import Group, Results, Row, Training, TrainingRow

_OURS, _THEIRS = "orbit_ckpt", "orbax"
_BOTH = (_OURS, _THEIRS)
_NAMES = {
    "orbax": "Orbax",
    "bare": "bare disk",
    "small-1000": "1,000 leaves of 4 KB and 128 B",
    "small-5000": "5,000 leaves of 4 KB and 128 B",
    "transformer": "transformer with Adam state, 446 leaves, 0.4 GB",
    "16x64MB": "16 arrays of 64 MB",
    "1x256MB": "1 array of 256 MB",
    "mesh-2x4": "mesh (2, 4)",
    "replicated-8": "8 replicas",
    "rows-8": "8 x rows",
}
_COSTS = ("median", "best", "processor")
_SUMMARY = ("save", "load_jax", "load_numpy", "metadata", "save_async")


def tables(results: Results) -> dict[str, str]:
    """Return the tables by name; empty ones have no results."""
    return {name: draw(results) for name, draw in _TABLES.items()}


def _run(results: Results) -> str:
    """Return how and where the figures were measured."""
    machine, options = results.machine, results.options
    hardware = (f"{machine['cores']} cores of {machine['cpu']}", machine.get("memory"))
    software = [f"{k} {v}" for k, v in machine.items() if k not in ("cpu", "cores", "memory")]
    return (
        f"`{options['command']}` on {options['date']}; random order of seed "
        f"{options['order_seed']}; load average {options['load']} at the start.\n"
        f"{', '.join(filter(None, (*hardware, *software)))}."
    )


def _against_orbax(results: Results) -> str:
    rows = [
        [_tree(group), *(_speedup(group, name) for name in _SUMMARY)]
        for group in _groups(results, "plain", "compressed")
    ]
    return _markdown(["tree", *(OPERATIONS[name].label for name in _SUMMARY)], rows)


def _times(results: Results) -> str:
    rows = [
        [
            *(_tree(group), OPERATIONS[name].label, _name(row.contender)),
            *(*_costs(row), "" if row.contender == _OURS else _ratio(group.row(name, _OURS), row)),
        ]
        for group in _groups(results, "plain", "compressed")
        for name in STANDARD
        for row in group.rows
        if row.operation == name and row.is_done
    ]
    header = ["tree", "operation", "library", *_COSTS, "to orbit_ckpt"]
    return _markdown(header, _without_repetition(rows))


def _leaves(results: Results) -> str:
    operations = ("save", "load_jax")
    groups = sorted(_groups(results, "leaves"), key=lambda group: group.leaves)
    contenders = dict.fromkeys(row.contender for group in groups for row in group.rows)
    pairs = list(product(operations, contenders))
    rows = [
        [f"{group.leaves:,}", *(_per_leaf(group, group.row(*pair)) for pair in pairs)]
        for group in groups
    ]
    header = [f"{_name(name)}: {OPERATIONS[operation].label}" for operation, name in pairs]
    return _markdown(["leaves", *header], rows)


def _disk(results: Results) -> str:
    rows = [
        [_name(row.contender), *_costs(row), f"{group.nbytes / row.median_s / 1e9:.2f} GB/s"]
        for group in _groups(results, "disk")
        for row in group.rows
        if row.median_s
    ]
    return _markdown(["save", *_COSTS, "data written"], rows)


def _memory(results: Results) -> str:
    def peak(group: Group, row: Row | None) -> str:
        if row is None or not row.is_done or not row.peak_bytes:
            return "-"
        nbytes = median(row.peak_bytes)
        return f"{size(nbytes)} ({nbytes / group.nbytes:.2f}x)"

    rows = [
        [OPERATIONS[name].label, *(peak(group, group.row(name, who)) for who in _BOTH)]
        for group in _groups(results, "memory")
        for name in ("save", "load_jax", "load_numpy")
    ]
    return _markdown(["peak memory beyond the tree", *map(_name, _BOTH)], rows)


def _on_disk(results: Results) -> str:
    def usage(group: Group, row: Row | None) -> str:
        if row is None or row.disk is None:
            return "-"
        beyond = (row.disk.nbytes - group.nbytes) / group.leaves
        many = f"{beyond:,.0f} B a leaf beyond the data, " if group.leaves >= 1000 else ""
        return f"{row.disk.nbytes / group.nbytes:.3f}x ({many}{row.disk.files} files)"

    contenders = (*_BOTH, "safetensors")
    rows = [
        [_tree(group), *(usage(group, group.row("save", name)) for name in contenders)]
        for group in _groups(results, "plain", "compressed")
    ]
    return _markdown(["size on disk", *map(_name, contenders)], rows)


def _reshard(results: Results) -> str:
    cells = [
        [_name(group.tree), OPERATIONS[name].label.removeprefix("onto "), *_compare(group, name)]
        for group in _groups(results, "reshard")
        for name in RESHARD
        if group.row(name, _OURS)
    ]
    return _markdown(["saved on", "loaded onto", *_COMPARED], _without_repetition(cells))


def _partial(results: Results) -> str:
    cells = [
        [f"{OPERATIONS[name].label} of {_name(group.tree)}", *_compare(group, name)]
        for group in _groups(results, "partial")
        for name in PARTIAL
        if group.row(name, _OURS)
    ]
    return _markdown(["loaded", *_COMPARED], cells)


def _training(results: Results) -> str:
    rows = [
        [_loop(training), _name(row.contender), *_laps(row)]
        for training in results.trainings
        for row in training.rows
        if row.is_done
    ]
    header = [
        "tree",
        "library",
        "steps alone",
        "added by the saves",
        "processor",
        "first save blocks",
    ]
    header += ["later saves block", "a step alone", "right after a save"]
    return _markdown(header, _without_repetition(rows))


_TABLES: dict[str, Callable[[Results], str]] = {
    "run": _run,
    "against_orbax": _against_orbax,
    "times": _times,
    "leaves": _leaves,
    "disk": _disk,
    "memory": _memory,
    "on_disk": _on_disk,
    "reshard": _reshard,
    "partial": _partial,
    "training": _training,
}


def _groups(results: Results, *suites: str) -> list[Group]:
    """Return results in the order of suites, and as drawn up there rather than as run."""
    return [group for name in suites for group in results.groups if group.suite == name]


def _name(key: str) -> str:
    return _NAMES.get(key, key)


def _tree(group: Group) -> str:
    return f"{_name(group.tree)}, compressed" if group.compression else _name(group.tree)


def _loop(training: Training) -> str:
    return f"{_name(training.tree)}, {'donating' if training.donate else 'not donating'}"


def _costs(row: Row | None) -> list[str]:
    """Return the median and the best time, and the least processor time."""
    figures = (row.median_s, row.best_s, row.best_processor_s) if row else (None,) * 3
    return ["-" if figure is None else time(figure) for figure in figures]


def _times_as_long(base: float | None, own: float | None) -> str | None:
    if not base or not own:
        return None
    ratio = base / own
    return f"{ratio:.{0 if ratio >= 10 else 1 if ratio >= 1 else 2}f}x"


def _ratio(ours: Row | None, theirs: Row | None) -> str:
    """Return how many times as long theirs takes: by medians, and by processor time."""
    if ours is None or theirs is None:
        return "-"
    wall = _times_as_long(theirs.median_s, ours.median_s)
    processor = _times_as_long(theirs.best_processor_s, ours.best_processor_s)
    return " / ".join(filter(None, (wall, processor))) or "-"


def _speedup(group: Group, operation: str) -> str:
    ours = group.row(operation, _OURS)
    ratio = _ratio(ours, group.row(operation, _THEIRS))
    return "-" if ours is None or ours.median_s is None else f"{ratio} ({time(ours.median_s)})"


_COMPARED = (
    *("median", "best", "processor", "Orbax: median", "best", "processor"),
    *("Orbax takes", "read per byte", "Orbax"),
)


def _compare(group: Group, operation: str) -> list[str]:
    """Return the times of both libraries, their ratio, and bytes read per byte asked for."""
    ours, theirs = (group.row(operation, name) for name in _BOTH)
    read = [_read_per_byte(group, row) for row in (ours, theirs)]
    return [*_costs(ours), *_costs(theirs), _ratio(ours, theirs), *read]


def _read_per_byte(group: Group, row: Row | None) -> str:
    if row is None or not row.read_bytes:
        return "-"
    ratio = min(row.read_bytes) / asked_bytes(group, row)
    return f"{ratio:,.{0 if ratio >= 100 else 2}f}"


def _per_leaf(group: Group, row: Row | None) -> str:
    if row is None or row.best_s is None or row.median_s is None:
        return "-"
    own, best = (seconds * 1e6 / group.leaves for seconds in (row.median_s, row.best_s))
    return f"{own:,.0f} ({best:,.0f}) µs"


def _laps(row: TrainingRow) -> Iterator[str]:
    yield time(median(laps.seconds for laps in row.alone))
    yield f"{time(median(row.added_s))} (best {time(min(row.added_s))})"
    yield f"{time(median(row.added_processor_s))} (best {time(min(row.added_processor_s))})"
    yield time(row.first_blocked_s)
    yield f"{time(median(row.later_blocked_s))} (best {time(min(row.later_blocked_s))})"
    yield time(median(row.steps_alone_s))
    yield time(median(row.steps_after_s))


def _without_repetition(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Leave the first cells of a row empty where they repeat the row above."""
    found: list[list[str]] = []
    for above, row in zip([[], *rows], rows, strict=False):
        same = next(
            (i for i, pair in enumerate(zip(above, row, strict=False)) if pair[0] != pair[1]), 0
        )
        found.append([*[""] * same, *row[same:]])
    return found


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table, or nothing without rows."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
