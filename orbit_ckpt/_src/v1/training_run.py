"""The manager of a run in the v1 API, and the responses of its saves."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, final

from typing_extensions import override

from orbit_ckpt._src.checkpointer.handle import SaveHandle
from orbit_ckpt._src.checkpointer.options import AsyncOptions
from orbit_ckpt._src.manager.manager import CheckpointManager
from orbit_ckpt._src.manager.options import CheckpointManagerOptions
from orbit_ckpt._src.manager.preservation import PreservationPolicy, PreserveAll
from orbit_ckpt._src.manager.save_policies import (
    AnySavePolicy,
    ContinuousCheckpointingPolicy,
    InitialSavePolicy,
    PreemptionCheckpointingPolicy,
    SaveDecisionPolicy,
)
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.manager.steps import StepNames
from orbit_ckpt._src.v1.context import Context
from orbit_ckpt._src.v1.types import AsyncResponse, JsonType

_SAVE_POLICIES = (
    InitialSavePolicy(),
    ContinuousCheckpointingPolicy(),
    PreemptionCheckpointingPolicy(),
)


@final
@dataclass(frozen=True, kw_only=True)
class RootMetadata:
    """Metadata of a run.

    Attributes:
        directory: Where it is.
        custom_metadata: The user's metadata.
    """

    directory: Path
    custom_metadata: Mapping[str, Any] | None = None


class StepOptions(TypedDict, total=False):
    """Options of the saves of a run."""

    force: bool
    overwrite: bool
    metrics: JsonType | None
    custom_metadata: JsonType | None


class Run(CheckpointManager):
    """A manager that shows what it knows of steps and of the save in progress."""

    def infos(self) -> list[StepInfo]:
        """Return the steps, ascending, with the one that is being saved."""
        return self._store.infos()

    def path_of(self, step: int) -> Path:
        """Return the directory of a step."""
        return self._store.path(step)

    def await_step(self, step: int | None) -> None:
        """Wait for a step that is being saved; None waits for any."""
        self._store.await_step(step)

    @property
    def pending(self) -> SaveHandle | None:
        """The last background save, unless its end has been noted."""
        return self._writer.pending


class StepResponse(AsyncResponse[bool]):
    """The save of a step in the background."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._handle = run.pending

    @override
    def result(self, timeout: float | None = None) -> bool:
        """Wait until the step is durable.

        Raises:
            TimeoutError: The save is still in progress after `timeout` seconds.
            BackgroundSaveError: The save failed.
        """
        if self._handle is not None:
            self._handle.exception(timeout)
            if self._run.pending is self._handle:
                self._run.wait_until_finished()
            self._handle.result()
        return True

    @override
    def on_complete(self, callback: Callable[[Any], object]) -> None:
        """Call a function with True once the step is durable, or now if it is."""
        if self._handle is None:
            callback(True)
        else:
            self._handle.call_when_saved(lambda: callback(True))


def run_options(
    context: Context,
    *,
    save_decision_policy: SaveDecisionPolicy | None,
    preservation_policy: PreservationPolicy | None,
    step_name_format: StepNames,
    cleanup_tmp_directories: bool,
) -> CheckpointManagerOptions:
    """Return the options of the manager of a run."""
    asynchronous, session = context.asynchronous, context.session()
    return CheckpointManagerOptions(
        save_decision_policy=save_decision_policy or AnySavePolicy(list(_SAVE_POLICIES)),
        preservation_policy=preservation_policy or PreserveAll(),
        step_name_format=step_name_format,
        cleanup_tmp_directories=cleanup_tmp_directories,
        async_options=AsyncOptions(
            timeout_secs=asynchronous.timeout_secs,
            post_finalization_callback=asynchronous.post_finalization_callback,
        ),
        file_options=session.files,
        multiprocessing_options=session.multiprocessing,
        atomicity_options=session.atomicity,
        prevent_write_metrics=True,  # they are a checkpointable
        keep_latest=False,
        clock=_now,
    )


def _now() -> dt.datetime:
    """Return the time; the class is looked up here because tests of trainers replace it."""
    return dt.datetime.now(tz=dt.UTC)
