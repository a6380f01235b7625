"""The command that follows a run: new steps, sizes, metrics, saves in progress, time left."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import Struct

from orbit_ckpt._src.cli.listing import step_fields
from orbit_ckpt._src.cli.metrics import has_nan
from orbit_ckpt._src.cli.output import SCHEMA, echo, format_time, human_number, plain, stored_bytes
from orbit_ckpt._src.cli.runs import UNKNOWN_TIME, ListedStep, list_run, unfinished_saves
from orbit_ckpt._src.errors import CheckpointError, CheckpointNotFoundError, StorageError
from orbit_ckpt._src.formats.locate import locate
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.text import human_bytes

_RECENT = 10
"""Number of newest steps from which the pace is estimated."""


class State(Struct, frozen=True):
    """A run at one time.

    Attributes:
        steps: Its finished steps.
        saving: The names of unfinished saves, with their sizes so far; None in a store.
        time: When it was read, in seconds of a clock that never goes back.
    """

    steps: Sequence[ListedStep]
    saving: dict[str, int | None]
    time: float


def watch(path: str, interval: float, until: int | None, as_json: bool) -> None:
    """Print the steps of a run as they appear, until a step or an interrupt."""
    root = resolve_path(path)
    before: State | None = None
    shown: set[str] = set()
    try:
        while True:
            now = read_state(root, time.monotonic())
            new = [step for step in now.steps if step.name not in shown]
            shown.update(step.name for step in new)
            _print_new(new, is_first=before is None, as_json=as_json)
            if until is not None and any(step.info.step >= until for step in now.steps):
                return
            if not as_json:
                _print_status(describe(before, now, until))
            before = now
            time.sleep(interval)
    except KeyboardInterrupt:
        _print_status("")
        raise click.exceptions.Exit(130) from None


def read_state(root: Path, now: float) -> State:
    """Read a run, which need not exist yet.

    Raises:
        StorageError: The directory cannot be read.
        ValueError: The path is one checkpoint.
    """
    try:
        steps = list_run(locate(root)) if root.exists() else []
    except StorageError:
        raise
    except CheckpointNotFoundError:
        steps = []  # no step has been saved yet
    if steps is None:
        raise ValueError(f"{root} is one checkpoint; give the directory with the steps of a run.")
    saving: dict[str, int | None] = {}
    for name in unfinished_saves(root, steps) if root.is_dir() else ():
        try:
            saving[name] = stored_bytes(root / name)
        except (OSError, CheckpointError):  # it has just been finished
            continue
    return State(steps, saving, now)


def describe(before: State | None, now: State, until: int | None) -> str:
    """Return a line about what a run is doing, and how long it may take."""
    parts: list[str] = []
    last = now.steps[-1].stored_bytes() if now.steps else None
    for name, nbytes in now.saving.items():
        parts.append(f"saving {name}: {_progress(before, now, name, nbytes, last)}")
    pace = seconds_per_step(now.steps)
    if pace is not None and until is not None:
        left = max(0, until - now.steps[-1].info.step) * pace
        age = time.time() - now.steps[-1].info.time.timestamp()
        parts.append(f"step {until} in about {human_seconds(max(0.0, left - max(0.0, age)))}")
    elif pace is not None and len(now.steps) > 1:
        gap = now.steps[-1].info.step - now.steps[-2].info.step
        parts.append(f"a step every {human_seconds(gap * pace)}")
    return ", ".join(parts) or ("waiting for the next step" if now.steps else "waiting for steps")


def _progress(
    before: State | None, now: State, name: str, nbytes: int | None, last: int | None
) -> str:
    if nbytes is None:
        return "in progress"
    if not last:
        return human_bytes(nbytes)
    text = f"{human_bytes(nbytes)} of about {human_bytes(last)}"
    earlier = before.saving.get(name) if before is not None else None
    if before is None or earlier is None:
        return text
    if nbytes <= earlier:
        return f"{text}, not growing"
    rate = (nbytes - earlier) / max(now.time - before.time, 1e-3)
    return f"{text}, {human_seconds(max(0, last - nbytes) / rate)} left"


def seconds_per_step(steps: Sequence[ListedStep]) -> float | None:
    """Return the recent pace of training; None without two steps with known times."""
    known = [step.info for step in steps[-_RECENT:] if step.info.time is not UNKNOWN_TIME]
    if len(known) < 2 or known[-1].step <= known[0].step:
        return None
    return (known[-1].time - known[0].time).total_seconds() / (known[-1].step - known[0].step)


def human_seconds(seconds: float) -> str:
    """Format a duration; one that would be rounded up to 60 is of the next unit."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 59.5:
        return f"{minutes:.0f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def _print_new(new: Sequence[ListedStep], *, is_first: bool, as_json: bool) -> None:
    if is_first and not as_json:
        _print_status("")
        skipped = max(0, len(new) - _RECENT)
        if skipped:
            echo(f"... {skipped} earlier steps")
        new = new[skipped:]
    for step in new:
        if as_json:
            fields = {"schema": SCHEMA, "command": "watch", **step_fields(step)}
            sys.stdout.write(json.dumps(plain(fields), ensure_ascii=False) + "\n")
            continue
        _print_status("")
        info = step.info
        metrics = [f"{name} {human_number(value)}" for name, value in (info.metrics or {}).items()]
        when = [] if info.time is UNKNOWN_TIME else [format_time(info.time)]
        facts = [human_bytes(step.stored_bytes()), *when, *metrics]
        is_bad = has_nan(info)
        echo(
            "  ".join([f"{info.step:>8}", *filter(None, facts)]), style="yellow" if is_bad else None
        )
    sys.stdout.flush()


def _print_status(text: str) -> None:
    """Show a line at the bottom of a terminal; the next one replaces it."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\x1b[K{text}")
        sys.stdout.flush()
