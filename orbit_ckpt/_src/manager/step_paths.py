"""Helpers of Orbax's `step` module: names of steps, and the steps of a directory."""

from __future__ import annotations

import re
from pathlib import Path

from orbit_ckpt._src.errors import StepNotFoundError
from orbit_ckpt._src.manager.steps import (
    StepNameFormat,
    StepNames,
    StepRecord,
    list_steps,
    read_step,
)
from orbit_ckpt._src.runtime.checks import check_methods
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.path import PathLike, describe_directory, resolve_path

_NAME = re.compile(r"(?:.*_)?([0-9]+)", re.DOTALL)


class _AnyPrefix:
    """Step names with any prefix that ends in an underscore."""

    def build_name(self, step: int) -> str:
        return str(step)

    def parse(self, name: str) -> int | None:
        found = _NAME.fullmatch(name)
        return int(found[1]) if found else None


def standard_name_format(
    *, step_prefix: str | None = None, step_format_fixed_length: int | None = None
) -> StepNameFormat:
    """Return Orbax's step names: `7`, `0007`, `prefix_7` or `prefix_0007`."""
    return StepNameFormat(step_prefix, step_format_fixed_length)


def build_step_path(base_path: PathLike, name_format: StepNames, step: int) -> Path:
    """Return the path of a step, which need not exist."""
    example = "Give StepNameFormat('step'), for example."
    check_methods("name_format", name_format or object, ["build_name"], example)
    return resolve_path(base_path) / name_format.build_name(step)


def latest_step_metadata(root_path: PathLike, name_format: StepNames) -> StepRecord | None:
    """Return number, path and time of the newest step of a run, None if it has none."""
    return max(list_steps(resolve_path(root_path), name_format), key=lambda r: r.step, default=None)


def find_step_path(base_path: PathLike, name_format: StepNames, *, step: int) -> Path:
    """Return the directory of a committed step.

    Raises:
        StepNotFoundError: The step does not exist.
    """
    root = resolve_path(base_path)
    for record in list_steps(root, name_format):
        if record.step == step:
            return record.path
    raise StepNotFoundError(f"There is no step {step} in {root}: {describe_directory(root)}.")


def checkpoint_steps(checkpoint_dir: PathLike) -> list[int]:
    """Return the committed steps of a run with any prefix, ascending."""
    return [record.step for record in list_steps(resolve_path(checkpoint_dir), _AnyPrefix())]


def is_path_finalized(path: PathLike) -> bool:
    """Return whether a directory of any name is a committed checkpoint."""
    directory = resolve_path(path)
    place = directory_of(directory)
    return place.is_committed() and (place.has_markers or read_step(0, directory) is not None)


__all__ = [
    "build_step_path",
    "checkpoint_steps",
    "find_step_path",
    "is_path_finalized",
    "latest_step_metadata",
    "standard_name_format",
]
