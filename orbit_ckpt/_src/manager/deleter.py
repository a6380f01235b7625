"""Orbax's deleter of steps, over the deleter of this library."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from orbit_ckpt._src.checkpointer.options import MultiprocessingOptions
from orbit_ckpt._src.manager.garbage_collection import StepDeleter
from orbit_ckpt._src.manager.step_paths import find_step_path
from orbit_ckpt._src.manager.steps import StepNames
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.text import warn_set

_logger = logging.getLogger(__name__)


class CheckpointDeleter(Protocol):
    """Deletes steps of a run."""

    def delete(self, step: int) -> None:
        """Delete a step."""
        ...

    def delete_steps(self, steps: Sequence[int]) -> None:
        """Delete several steps."""
        ...

    def close(self) -> None:
        """Wait for deletions in progress."""
        ...


class RunDeleter(CheckpointDeleter):
    """Deletes steps of a run; a step disappears from every listing at once.

    On processes other than the primary one it does nothing.
    """

    def __init__(
        self, deleter: StepDeleter, names: StepNames, *, is_active: bool, in_background: bool
    ) -> None:
        self._deleter = deleter
        self._names = names
        self._is_active = is_active
        self._pool = Workers(1, "orbit_ckpt-delete") if in_background else None

    @override
    def delete(self, step: int) -> None:
        """Delete a step.

        Raises:
            StepNotFoundError: The step does not exist.
            OSError: The storage refused.
        """
        if not self._is_active:
            return
        path = find_step_path(self._deleter.root, self._names, step=step)
        tombstone = self._deleter.tombstone(path)
        if tombstone is None:
            return
        remove = partial(self._deleter.remove, tombstone, path)
        if self._pool is None:
            remove()
        else:
            self._pool.submit(_logged, remove, path)

    @override
    def delete_steps(self, steps: Sequence[int]) -> None:
        for step in steps:
            self.delete(step)

    @override
    def close(self) -> None:
        if self._pool is not None:
            wait([self._pool.submit(lambda: None)])
            self._pool.shutdown()


def _logged(remove: partial[None], path: Path) -> None:
    try:
        remove()
    except Exception:  # the error reaches no caller; the next sweep removes the step
        _logger.exception("Deleting %s failed", path)


def create_checkpoint_deleter(
    directory: PathLike,
    *,
    name_format: StepNames,
    primary_host: int | None = 0,
    todelete_subdir: str | None = None,
    todelete_full_path: str | None = None,
    enable_background_delete: bool = False,
    num_threads: int | None = None,
) -> CheckpointDeleter:
    """Return a deleter of the steps of a run.

    Args:
        directory: The run's directory.
        name_format: How steps are named.
        primary_host: The process that deletes, None for each.
        todelete_subdir: Subdirectory that receives deleted steps.
        todelete_full_path: Not supported: object stores have no rename.
        enable_background_delete: Whether `delete` returns once the step is no longer listed.
        num_threads: Ignored.

    Raises:
        ValueError: `todelete_full_path` is given, or `todelete_subdir` in an object store.
    """
    why = "enable_background_delete deletes without delaying the caller"
    warn_set("create_checkpoint_deleter", {"num_threads": (num_threads, None, why)})
    if todelete_full_path is not None:
        raise ValueError(
            "todelete_full_path is not supported: object stores have no rename. Leave it out; "
            "steps are then deleted. On a disk use todelete_subdir."
        )
    process = MultiprocessingOptions(primary_host=primary_host).find_group().process
    deleter = StepDeleter(resolve_path(directory), name_format, todelete_subdir=todelete_subdir)
    return RunDeleter(
        deleter, name_format, is_active=process.is_primary, in_background=enable_background_delete
    )
