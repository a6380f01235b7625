"""Runs as commands see them: steps with any naming, and the rules that keep them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.cli.metrics import is_lower_better
from orbit_ckpt._src.cli.output import stored_bytes
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.formats.base import ForeignStep
from orbit_ckpt._src.formats.locate import Located
from orbit_ckpt._src.formats.runs import RunStep, is_unfinished
from orbit_ckpt._src.manager.combined_preservation import AnyPreservationPolicy
from orbit_ckpt._src.manager.index import StepIndex, make_entry
from orbit_ckpt._src.manager.plugin_policies import find_policy
from orbit_ckpt._src.manager.preservation import (
    BestN,
    EveryNSteps,
    LatestN,
    PreservationContext,
    PreservationPolicy,
)
from orbit_ckpt._src.manager.recorded_rules import apply_again, by_metric, describe
from orbit_ckpt._src.manager.retention import RetentionRules
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.manager.steps import StepParser, record_step
from orbit_ckpt._src.metadata.step_details import RecordedRule, read_rules
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.layout import RETENTION, number_in
from orbit_ckpt._src.storage.local_directory import entries_bytes


class AnyStepName(StepParser):
    """Step names that end in digits: `7`, `step_0007`, `checkpoint_7`, `run-7`."""

    @override
    def build_name(self, step: int) -> str:
        return str(step)

    @override
    def parse(self, name: str) -> int | None:
        return number_in(name)


class Keeping(Struct, frozen=True):
    """The retention options of a command.

    Attributes:
        last: Number of newest steps to keep.
        every: Keep multiples of this number.
        best: Number of best steps to keep.
        metric: The metric to rank by.
        lowest: Whether the lowest is the best; None to judge by the metric's name.
        policy: Name of a preservation policy of a plug-in.
    """

    last: int | None = None
    every: int | None = None
    best: int | None = None
    metric: str | None = None
    lowest: bool | None = None
    policy: str | None = None

    def __post_init__(self) -> None:
        if (self.best is None) != (self.metric is None):
            raise ValueError("--keep-best and --metric are given together or not at all.")

    @property
    def is_given(self) -> bool:
        """Whether any rule is given."""
        return any(n is not None for n in (self.last, self.every, self.best, self.policy))

    def rules(self, steps: Sequence[StepInfo]) -> dict[int, list[str]]:
        """Return for each step the rules that keep it, as text; none if it is deleted.

        Raises:
            ValueError: No step has the metric.
        """
        return _explain(steps, self._policies(steps))

    def _policies(self, steps: Sequence[StepInfo]) -> list[tuple[PreservationPolicy, str]]:
        found: list[tuple[PreservationPolicy, str]] = []
        if self.last is not None:
            found.append((LatestN(self.last), f"last {self.last}"))
        if self.every is not None:
            found.append((EveryNSteps(self.every), f"every {self.every}"))
        if self.best is not None and self.metric is not None:
            found.append((self._best(steps, self.metric), f"best {self.best} by {self.metric}"))
        if self.policy is not None:
            found.append((_preservation_policy(self.policy), f"policy {self.policy}"))
        return found

    def _best(self, steps: Sequence[StepInfo], metric: str) -> PreservationPolicy:
        known = {name for info in steps for name in info.metrics or ()}
        if steps and metric not in known:
            raise ValueError(
                f"No step has a metric {metric!r}; there are {', '.join(sorted(known)) or 'none'}."
            )

        lowest = is_lower_better(metric) if self.lowest is None else self.lowest
        return BestN(get_metric_fn=by_metric(metric), reverse=lowest, n=self.best)


def _preservation_policy(name: str) -> PreservationPolicy:
    found = find_policy(name)
    if not isinstance(found, PreservationPolicy):
        raise ValueError(
            f"The policy {name!r} decides when to save, not what to keep. Give one that has "
            "should_preserve(); `orbit-ckpt plugins` lists the installed ones."
        )
    return found


def _explain(
    steps: Sequence[StepInfo], policies: Sequence[tuple[PreservationPolicy, str]]
) -> dict[int, list[str]]:
    """Return for each step the texts of the policies that keep it."""
    rules = RetentionRules(AnyPreservationPolicy([policy for policy, _ in policies]))
    plan = rules.plan(steps, PreservationContext())
    texts = {id(policy): text for policy, text in policies}

    def text_of(rule: PreservationPolicy) -> str:
        # the rules keep the newest step in any case
        return texts.get(id(rule)) or ("newest" if rule == LatestN(1) else describe(rule))

    return {step.step: list(dict.fromkeys(map(text_of, step.rules))) for step in plan.steps}


class ListedStep(Struct, frozen=True):
    """A committed step of a run.

    Attributes:
        info: The step as policies see it.
        path: Its path.
        name: The last part of it, which a `Path` takes long to split off.
        entries: Contents of its directory; empty for a file, and in a store.
    """

    info: StepInfo
    path: Path
    name: str
    entries: Sequence[os.DirEntry[str]] = ()

    def stored_bytes(self) -> int | None:
        """Return the size of its files; None in a store."""
        return entries_bytes(self.entries) if self.entries else stored_bytes(self.path)


def list_run(located: Located) -> list[ListedStep] | None:
    """Return the committed steps of a run, ascending; None for a single checkpoint.

    Raises:
        CheckpointNotFoundError: It is neither, or its checkpoints have no numbers.
        IncompleteCheckpointError: It is an unfinished save.
    """
    located.check()
    if located.is_checkpoint:
        return None
    root, steps = located.path, located.run.steps
    found = [_foreign_step(one, one.foreign) for one in steps if one.foreign is not None]
    if len(found) < len(steps) and directory_of(root).has_markers:  # `steps` has no details
        index = StepIndex(root, AnyStepName()).entries().values()
        found += [ListedStep(entry.info, entry.path, entry.path.name) for entry in index]
    else:
        found += [step for one in steps if (step := _own_step(one)) is not None]
    if not found and located.problem is not None:
        raise located.problem
    return sorted(found, key=lambda step: step.info.step)


def _own_step(found: RunStep) -> ListedStep | None:
    """Return a local step of this library or Orbax; None if it has no number or is gone."""
    if found.reader is not None or found.step is None:
        return None
    try:
        entry = make_entry(record_step(cast(int, found.step), found))
    except FileNotFoundError:
        return None
    return ListedStep(entry.info, entry.path, os.path.basename(found.place), found.entries)


UNKNOWN_TIME = datetime.fromtimestamp(0, tz=UTC)
"""Placeholder for the unknown time when another program wrote a step into a store."""


def _foreign_step(one: RunStep, found: ForeignStep) -> ListedStep:
    time = UNKNOWN_TIME if found.time is None else datetime.fromtimestamp(found.time, tz=UTC)
    number = -1 if one.step is None else one.step
    step = cast(int, number)  # or a fraction, which is listed, compared and kept alike
    info = StepInfo(step, time, pinned=found.is_pinned, temporary=found.is_temporary)
    return ListedStep(info, one.path, one.path.name, one.entries)


def kept_by(entries: Sequence[ListedStep], keeping: Keeping) -> dict[int, list[str]] | None:
    """Return for each step of a run the rules that keep it, as text; None if no rules are known.

    Args:
        entries: The steps, ascending.
        keeping: The rules to apply; if it has none, those which the newest step recorded.
    """
    infos = [entry.info for entry in entries]
    if keeping.is_given:
        return keeping.rules(infos)
    recorded = _recorded_rules(entries)
    if not recorded:
        return None
    policies = [(policy, rule.text) for rule in recorded if (policy := apply_again(rule))]
    in_words = [rule.text for rule in recorded if apply_again(rule) is None]
    found = _explain(infos, policies)
    return {step: reasons or in_words for step, reasons in found.items()}


def _recorded_rules(entries: Sequence[ListedStep]) -> Sequence[RecordedRule]:
    newest = entries[-1] if entries else None
    if newest is None or newest.info.foreign:
        return ()
    if newest.entries and not any(entry.name == RETENTION for entry in newest.entries):
        return ()
    try:
        return read_rules(newest.path)
    except (CheckpointError, OSError):  # `verify` reports damage
        return ()


def unfinished_saves(root: Path, finished: Iterable[ListedStep]) -> list[str]:
    """Return the names of unfinished saves and conversions, in progress or abandoned.

    Args:
        root: The run.
        finished: Its steps.
    """
    known = {entry.name for entry in finished}
    return directory_of(root).unfinished_below(known, is_unfinished)
