"""Runs as commands see them: steps with any naming."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.cli.output import stored_bytes
from orbit_ckpt._src.formats.base import ForeignStep
from orbit_ckpt._src.formats.locate import Located
from orbit_ckpt._src.formats.runs import RunStep, is_unfinished
from orbit_ckpt._src.manager.index import StepIndex, make_entry
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.manager.steps import StepParser, record_step
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.layout import number_in
from orbit_ckpt._src.storage.local_directory import entries_bytes


class AnyStepName(StepParser):
    """Step names that end in digits: `7`, `step_0007`, `checkpoint_7`, `run-7`."""

    @override
    def build_name(self, step: int) -> str:
        return str(step)

    @override
    def parse(self, name: str) -> int | None:
        return number_in(name)


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


def unfinished_saves(root: Path, finished: Iterable[ListedStep]) -> list[str]:
    """Return the names of unfinished saves and conversions, in progress or abandoned.

    Args:
        root: The run.
        finished: Its steps.
    """
    known = {entry.name for entry in finished}
    return directory_of(root).unfinished_below(known, is_unfinished)
