"""Which checkpoint an argument names: a path, a run's newest step, or `RUN@SELECTOR`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from orbit_ckpt._src.cli.metrics import best_step, is_lower_better, metric_names
from orbit_ckpt._src.cli.runs import ListedStep, list_run
from orbit_ckpt._src.errors import CheckpointNotFoundError, StepNotFoundError
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.formats.locate import Kind, Located, locate
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.text import visible
from orbit_ckpt._src.tree.diff import nearest_names

SELECTORS = "@latest, @STEP, @-2 (the last but one), @best:METRIC, @min:METRIC or @max:METRIC"

_SELECTED = re.compile(r"(?P<run>.+)@(?P<selector>latest|-?\d+|(?:best|min|max):.+)", re.DOTALL)


def find_checkpoint(text: PathLike, *, quiet: bool = False, reader: Format | None = None) -> Path:
    """Return the checkpoint that an argument names; of a run, its newest step.

    A step chosen from a run is named on standard error, unless `quiet`.

    Args:
        text: A path of a checkpoint, an item or a run, or a run with a selector.
        quiet: Whether to name nothing.
        reader: A format that was asked for, which may itself choose a step of a run.

    Raises:
        CheckpointNotFoundError: The run has no such step, or no metric of this name.
    """
    path = select_step(text, quiet=quiet)
    if reader is not None:
        return path
    located = locate(path)
    newest = located.step_to_read()
    if newest is None or located.kind is not Kind.RUN:
        return path
    if not quiet:
        _note(newest, f"the newest of {len(located.run.steps)} steps")
    return newest


def select_step(text: PathLike, *, quiet: bool = False) -> Path:
    """Return the path that an argument names: a step if it is `RUN@SELECTOR`, else itself.

    Raises:
        CheckpointNotFoundError: The run has no such step, or no metric of this name.
    """
    found = _SELECTED.fullmatch(str(text))
    path = resolve_path(text)
    if "@" not in path.name and found is None:
        return path
    if found is None or path.exists():
        _check_selector(str(text), path)
        return path
    located = locate(resolve_path(found["run"]))
    step, why = _select(located, _steps_of(located, found["selector"]), found["selector"])
    if why and not quiet:
        _note(step.path, why)
    return step.path


def _check_selector(text: str, path: Path) -> None:
    """Check that a path that does not exist is not a run with a misspelt selector.

    Raises:
        CheckpointNotFoundError: It is.
    """
    run, sign, selector = text.rpartition("@")
    if not (sign and run) or path.exists() or "/" in selector:
        return
    if locate(resolve_path(run)).kind is Kind.RUN:
        raise CheckpointNotFoundError(
            f"{path}: {selector!r} selects no step of {run}. Give {SELECTORS}."
        )


def _steps_of(located: Located, selector: str) -> Sequence[ListedStep]:
    steps = list_run(located)
    if steps is None:
        raise CheckpointNotFoundError(
            f"{located.path} is one checkpoint, of which '@{selector}' selects nothing. Leave it "
            "out, or give a run."
        )
    if not steps:
        raise StepNotFoundError(f"{located.path} has no finished step. Give another run.")
    return steps


def _select(located: Located, steps: Sequence[ListedStep], selector: str) -> tuple[ListedStep, str]:
    """Return the step that a selector means, and why unless it has its number."""
    run = located.path
    kind, _, metric = selector.partition(":")
    if selector == "latest":
        newest = located.step_to_read()
        latest = next((step for step in steps if step.path == newest), steps[-1])
        return latest, f"the newest of {len(steps)} steps"
    if metric:
        return _select_best(run, steps, kind, metric)
    number = int(selector)
    if number < 0:
        if -number > len(steps):
            raise StepNotFoundError(f"{run} has {len(steps)} steps, so '@{selector}' is none.")
        return steps[number], f"number {len(steps) + number + 1} of {len(steps)} steps"
    for step in steps:
        if step.info.step == number:
            return step, ""
    numbers = sorted((step.info.step for step in steps), key=lambda n: (abs(n - number), n))
    nearest = ", ".join(map(str, sorted(numbers[:3])))
    raise StepNotFoundError(f"There is no step {number} in {run}; the nearest are {nearest}.")


def _select_best(
    run: Path, steps: Sequence[ListedStep], kind: str, metric: str
) -> tuple[ListedStep, str]:
    known = metric_names([step.info for step in steps])
    if metric not in known:
        near = nearest_names(metric, known)
        which = f"The nearest is {near[0]!r}." if near else f"There are: {', '.join(known)}."
        raise StepNotFoundError(
            f"No step of {run} has a metric {metric!r}. "
            f"{which if known else 'Its steps have no metrics.'}"
        )
    lowest = is_lower_better(metric) if kind == "best" else kind == "min"
    best = best_step([step.info for step in steps], metric, lowest=lowest)
    if best is None:
        raise StepNotFoundError(f"{metric!r} is no number in any step of {run}.")
    (step,) = [step for step in steps if step.info is best]
    value = (best.metrics or {})[metric]
    return step, f"the {'lowest' if lowest else 'highest'} {metric}: {value}"


def _note(path: Path, why: str) -> None:
    sys.stderr.write(visible(f"{path}: {why}") + "\n")
