"""Paths of steps: the functions of Orbax's `step` module that read directories."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from orbit_ckpt._src.checkpointer.options import AtomicityOptions
from orbit_ckpt._src.checkpointer.unfinished import all_temporary_paths, options_of
from orbit_ckpt._src.manager.step_names import (
    NameFormat,
    found_steps,
    only_step,
    standard_name_format,
)
from orbit_ckpt._src.manager.steps import (
    FoundStep,
    StepNames,
    latest_step,
    list_steps,
    read_step,
)
from orbit_ckpt._src.runtime.checks import check_methods
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, TEMPORARY_SUFFIX
from orbit_ckpt._src.storage.path import PathLike, resolve_path

FoundT = TypeVar("FoundT", bound=FoundStep)

_NAME = re.compile(r"(?:.+_)?([0-9]+)", re.DOTALL)
_UNFINISHED_NAME = re.compile(r".*?([0-9]+)", re.DOTALL)


class _AnyPrefix:
    """Step names with any prefix that ends in an underscore."""

    def build_name(self, step: int) -> str:
        return str(step)

    def parse(self, name: str) -> int | None:
        found = _NAME.fullmatch(name)
        return int(found[1]) if found else None


def step_prefix_with_underscore(step_prefix: str | None) -> str:
    """Return a prefix of step names with an underscore after it; nothing for None."""
    return "" if step_prefix is None else f"{step_prefix}_"


def step_from_checkpoint_name(name: str) -> int:
    """Return the step that a directory's name denotes, also while it is being saved.

    Raises:
        ValueError: The name denotes no step.
    """
    final, suffix, _ = name.partition(TEMPORARY_SUFFIX)
    found = (_UNFINISHED_NAME if suffix else _NAME).fullmatch(final)
    if found is None:
        raise ValueError(
            f"{name!r} is not the name of a step; give a number, or a number after a prefix that "
            "ends in an underscore."
        )
    return int(found[1])


def build_step_path(base_path: PathLike, name_format: StepNames, step: int) -> Path:
    """Return the path of a step, which need not exist."""
    example = "Give StepNameFormat('step'), for example."
    check_methods("name_format", name_format or object, ["build_name"], example)
    return resolve_path(base_path) / name_format.build_name(step)


def get_save_directory(
    step: int,
    directory: PathLike,
    name: str | None = None,
    step_prefix: str | None = None,
    override_directory: PathLike | None = None,
    step_format_fixed_length: int | None = None,
    step_name_format: StepNames | None = None,
) -> Path:
    """Return the path of a step or of one of its items, which need not exist.

    Args:
        step: The step.
        directory: The run's directory.
        name: The item, None for the step itself.
        step_prefix: Prefix of step names.
        override_directory: The step's directory; replaces the one that the other arguments name.
        step_format_fixed_length: Number of digits in step names.
        step_name_format: How steps are named, instead of the two above.
    """
    if override_directory is not None:
        path = resolve_path(override_directory)
    else:
        names = step_name_format or standard_name_format(
            step_prefix=step_prefix, step_format_fixed_length=step_format_fixed_length
        )
        path = build_step_path(directory, names, step)
    return path if name is None else path / name


def latest_step_metadata(root_path: PathLike, name_format: StepNames) -> FoundStep | None:
    """Return number, path and times of the newest step of a run, None if it has none."""
    return max(found_steps(root_path, name_format), key=lambda found: found.step, default=None)


def find_step_path(
    base_path: PathLike, name_format: StepNames, *, step: int, include_uncommitted: bool = False
) -> Path:
    """Return the directory of a step.

    Args:
        base_path: The run's directory.
        name_format: How steps are named.
        step: The step.
        include_uncommitted: Whether the directory of a save that has not ended is preferred.

    Raises:
        StepNotFoundError: The step does not exist.
    """
    if include_uncommitted:
        final = build_step_path(base_path, name_format, step)
        unfinished = (p for p in all_temporary_paths(base_path) if p.get_final() == final)
        found = next(unfinished, None)
        if found is not None:
            return found.get()
    find_step: Callable[[PathLike, int], FoundStep] | None = getattr(name_format, "find_step", None)
    if find_step is not None:
        return resolve_path(find_step(base_path, step).path)
    return resolve_path(only_step(found_steps(base_path, name_format), step, base_path).path)


def maybe_find_step_metadata(
    base_path: PathLike, name_format: NameFormat[FoundT], *, step: int
) -> FoundT | None:
    """Return number, path and times of a step, None if it does not exist."""
    try:
        return name_format.find_step(base_path, step)
    except ValueError:
        return None


def step_metadata_of_checkpoint_path(
    checkpoint_path: PathLike, name_format: NameFormat[FoundT]
) -> FoundT:
    """Return number, path and times of the step with a path.

    Raises:
        ValueError: The path is not that of a committed step.
    """
    path = resolve_path(checkpoint_path)
    found = {Path(one.path).name: one for one in name_format.find_all(path.parent)}
    if path.name not in found:
        raise ValueError(
            f"{path} is not a committed step with a name by {name_format!r}; in {path.parent} "
            f"there are {sorted(found) or 'none'}. Give the directory of a step."
        )
    return found[path.name]


def build_step_metadatas(
    step_paths: Iterable[Path], build_metadata: Callable[[Path], FoundT | None]
) -> Iterator[FoundT]:
    """Yield the results of a function of paths that are not None."""
    return (found for path in step_paths if (found := build_metadata(path)) is not None)


def checkpoint_steps(checkpoint_dir: PathLike) -> list[int]:
    """Return the committed steps of a run with any prefix, ascending."""
    return [record.step for record in list_steps(resolve_path(checkpoint_dir), _AnyPrefix())]


def checkpoint_steps_paths(checkpoint_dir: PathLike) -> list[Path]:
    """Return the directories of the committed steps of a run with any prefix, ascending."""
    return [record.path for record in list_steps(resolve_path(checkpoint_dir), _AnyPrefix())]


def any_checkpoint_step(checkpoint_dir: PathLike) -> int | None:
    """Return a committed step of a run with any prefix, None if it has none."""
    found = latest_step(resolve_path(checkpoint_dir), _AnyPrefix())
    return None if found is None else found.step


def is_path_finalized(
    path: PathLike,
    *,
    temporary_path_cls: object = None,
    atomicity_options: AtomicityOptions | None = None,
) -> bool:
    """Return whether a directory of any name is a committed checkpoint.

    Args:
        path: The directory.
        temporary_path_cls: How checkpoints become visible, as an alternative to the next one.
        atomicity_options: In marker mode, a directory without a marker is not committed.
    """
    directory = resolve_path(path)
    place = directory_of(directory)
    needs_marker = options_of(
        "is_path_finalized", temporary_path_cls, atomicity_options
    ).needs_marker
    if needs_marker and not (directory / COMMIT_MARKER).is_file():
        return False
    return place.is_committed() and (place.has_markers or read_step(0, directory) is not None)
