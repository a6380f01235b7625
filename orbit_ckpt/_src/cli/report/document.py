"""The data of a page: what is known of every step of a run, and of every leaf in it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from orbit_ckpt._src.checkpointer.inspect import metadata
from orbit_ckpt._src.cli.health import StepHealth, read_health
from orbit_ckpt._src.cli.inspect import Leaf
from orbit_ckpt._src.cli.keeping import Keeping
from orbit_ckpt._src.cli.output import stored_bytes
from orbit_ckpt._src.cli.report.measure import (
    MeasuredStep,
    Progress,
    list_step,
    measure_steps,
    no_progress,
)
from orbit_ckpt._src.cli.report.packed import pack_histograms, pack_matrices, row_of
from orbit_ckpt._src.cli.report.shardings import device_maps
from orbit_ckpt._src.cli.report.steps import describe_steps, disk_bytes, list_steps
from orbit_ckpt._src.cli.report.timing import save_times
from orbit_ckpt._src.cli.runs import ListedStep
from orbit_ckpt._src.formats.locate import locate
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.path import PathLike, resolve_local
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.verify.verifier import verify
from orbit_ckpt._src.version import __version__

COLUMNS = (
    *("name", "kind", "dtype", "shape", "nbytes", "stored", "compression", "chunk_shape"),
    *("sharding", "min", "max", "mean", "l2", "nans", "infs", "zeros"),
)
"""Fields of a leaf, in the order of its row in the page."""

_MOST_PROBLEMS = 20
"""Messages of a step that the page has."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What a page is to contain.

    Attributes:
        statistics: Whether to read the values.
        steps: Number of newest steps whose values are read; the metadata of the newest readable
            step is read in any case.
        verify: Whether to verify every byte of these steps too.
        memory_mb: Approximate number of MB of values to hold at once.
        keeping: Rules that explain which steps are kept.
    """

    statistics: bool = True
    steps: int = 10
    verify: bool = False
    memory_mb: int = 256
    keeping: Keeping = field(default_factory=Keeping)


class PageSource:
    """Collects the data of a page; what it has read of a step it does not read again."""

    def __init__(self, path: PathLike, options: ReportOptions) -> None:
        """Make one.

        Args:
            path: The checkpoint or run.
            options: What the page is to contain.
        """
        self.root = resolve_local(path)
        self._options = options
        self._measured: dict[Path, MeasuredStep] = {}
        self._damage: dict[Path, list[str]] = {}
        self._saves: dict[Path, tuple[object, object]] = {}

    def fingerprint(self) -> list[tuple[object, ...]]:
        """Return values that change when a step is added, replaced, deleted or pinned."""
        entries = list_steps(self.root)
        if not entries:
            return [(str(self.root), directory_of(self.root).modified_ns())]
        fields = attrgetter("step", "time", "pinned", "temporary", "metrics")
        return [(str(entry.path), *fields(entry.info)) for entry in entries]

    def collect(self, progress: Progress = no_progress) -> dict[str, object]:
        """Return the data of the page.

        Raises:
            CheckpointNotFoundError: There is neither a checkpoint nor a step.
        """
        entries = list_steps(self.root)
        paths = [entry.path for entry in entries] or [self.root]
        if not entries:
            located = locate(self.root)
            located.check()
        self._forget(entries)
        self._read(paths, progress)
        history = describe_steps(entries, self._options.keeping)
        return self._assemble(paths, history) | {"disk_bytes": disk_bytes(entries)}

    def _forget(self, entries: Sequence[ListedStep]) -> None:
        """Forget steps that were deleted or replaced, and those that were compared with them."""
        times = [(entry.path, entry.info.time) for entry in entries]
        saves: dict[Path, tuple[object, object]] = {
            save[0]: (before, save) for before, save in zip([None, *times], times, strict=False)
        }
        kept = {path for path, save in saves.items() if self._saves.get(path) == save}
        self._measured = {path: step for path, step in self._measured.items() if path in kept}
        self._damage = {path: found for path, found in self._damage.items() if path in kept}
        self._saves = saves

    def _read(self, paths: Sequence[Path], progress: Progress) -> None:
        """Read the newest steps, as far as that is not done yet."""
        options = self._options
        chosen = paths[-options.steps :]
        self._measured = {path: self._measured[path] for path in chosen if path in self._measured}
        for is_known, group in groupby(chosen, lambda path: path in self._measured):
            if is_known or not options.statistics:
                continue
            new = list(group)
            first = paths.index(new[0])
            before = paths[first - 1] if first and paths[first - 1] in self._measured else None
            found = measure_steps(new, options.memory_mb * 10**6, progress, before=before)
            self._measured |= zip(new, found, strict=True)
        for path in chosen if options.verify else ():
            if path not in self._damage:
                report = verify(path, max_bytes=options.memory_mb * 10**6)
                found = [*report.damage, *report.unverifiable]
                self._damage[path] = [str(one) for one in found]
        for path in reversed(paths):  # the newest that can be opened is shown
            self._measured[path] = self._measured.get(path) or list_step(path)
            if self._measured[path].error is None:
                break

    def _assemble(
        self, paths: Sequence[Path], history: list[dict[str, object]]
    ) -> dict[str, object]:
        measured = [(i, self._measured[p]) for i, p in enumerate(paths) if p in self._measured]
        shown = next((i for i, step in reversed(measured) if step.error is None), None)
        leaves = _all_leaves([step for _, step in measured])
        steps = [step for _, step in measured]
        names = list(leaves)
        step = MeasuredStep() if shown is None else self._measured[paths[shown]]
        has_values = self._options.statistics
        dtype, matrices = pack_matrices(steps, names) if has_values else ("f4", {})
        known = read_health(paths[0].parent)
        states = [self._state(path, known.get(path.name, StepHealth())) for path in paths]
        return {
            "title": _title(self.root),
            "path": str(self.root),
            "shown": shown,
            "shown_path": None if shown is None else str(paths[shown]),
            "version": __version__,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "stored_bytes": None if shown is None else stored_bytes(paths[shown]),
            "custom_metadata": None if shown is None else metadata(paths[shown]).custom_metadata,
            "has_statistics": has_values,
            "columns": COLUMNS,
            "leaves": [_row(leaf, step) for leaf in leaves.values()],
            "shardings": {} if shown is None else device_maps(paths[shown]),
            "history": [fields | state for fields, state in zip(history, states, strict=False)],
            "state": states[0],
            "measured": [i for i, _ in measured],
            "absent": _absent(steps, names),
            "not_finite": _not_finite(steps, names),
            "damage": _damage(steps, names),
            "matrix_dtype": dtype,
            "matrices": matrices,
            "histograms": pack_histograms(steps, names) if has_values else {},
        }

    def _state(self, path: Path, known: StepHealth) -> dict[str, object]:
        """Return the state of a step: what is known to be wrong with it, or how it was checked.

        Args:
            path: The step.
            known: What earlier commands found in it.
        """
        step, damage = self._measured.get(path), self._damage.get(path)
        problems = list(damage or ())
        bad = known.not_finite
        if step is not None:
            problems = ([step.error] if step.error else []) + problems
            problems += [one.damage for one in step.found.values() if one.damage]
            statistics = [one.statistics for one in step.found.values() if one.statistics]
            bad = sum(one.nans + one.infs > 0 for one in statistics) if step.found else bad
        if known.damaged and damage is None:
            problems.append(f"`orbit-ckpt verify` found damage in {known.damaged} places.")
        health = StepHealth(
            verified=known.verified if damage is None else time.time(),
            damaged=len(problems),
            not_finite=bad,
        )
        return {
            "state": health.state,
            "problems": list(dict.fromkeys(problems))[:_MOST_PROBLEMS],
            "leaves_not_finite": bad or 0,
            "save": None if step is None else save_times(path),
        }


def _title(root: Path) -> str:
    return f"{root.parent.name}/{root.name}" if root.name.isdecimal() else root.name


def _all_leaves(steps: Sequence[MeasuredStep]) -> dict[NamePath, Leaf]:
    """Return the leaves of all steps; each is described as in the newest step that has it."""
    found: dict[NamePath, Leaf] = {}
    for step in reversed(steps):
        for leaf in step.leaves:
            found.setdefault(leaf.keys, leaf)
    return found


def _row(leaf: Leaf, step: MeasuredStep) -> list[object]:
    found = step.found.get(leaf.keys)
    return [
        *(leaf.name, leaf.kind, leaf.dtype, leaf.shape, leaf.nbytes),
        *(step.stored.get(leaf.keys), leaf.compression, leaf.chunk_shape, leaf.sharding),
        *row_of(found.statistics if found else None),
    ]


def _absent(steps: Sequence[MeasuredStep], names: Sequence[NamePath]) -> list[tuple[int, int]]:
    """Return step and leaf of every leaf that a step does not have."""
    found: list[tuple[int, int]] = []
    for row, step in enumerate(steps):
        present = {leaf.keys for leaf in step.leaves}
        found += [(row, i) for i, name in enumerate(names) if name not in present]
    return found


def _not_finite(
    steps: Sequence[MeasuredStep], names: Sequence[NamePath]
) -> list[tuple[int, int, int, int]]:
    """Return step, leaf, NaN and infinite values wherever there are any."""
    places = {name: i for i, name in enumerate(names)}
    return [
        (row, places[keys], found.statistics.nans, found.statistics.infs)
        for row, step in enumerate(steps)
        for keys, found in step.found.items()
        if found.statistics is not None and found.statistics.nans + found.statistics.infs
    ]


def _damage(steps: Sequence[MeasuredStep], names: Sequence[NamePath]) -> list[tuple[int, int, str]]:
    """Return step, leaf and message of every leaf that cannot be read."""
    places = {name: i for i, name in enumerate(names)}
    return [
        (row, places[keys], found.damage)
        for row, step in enumerate(steps)
        for keys, found in step.found.items()
        if found.damage is not None
    ]
