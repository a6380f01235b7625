"""A run of steps in the v1 API, kept by the manager of the library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack, final

from typing_extensions import deprecated

from orbit_ckpt._src.errors import StepAlreadyExistsError, StepNotFoundError
from orbit_ckpt._src.manager.preservation import PreservationPolicy
from orbit_ckpt._src.manager.save_policies import SaveDecisionPolicy
from orbit_ckpt._src.manager.step_names import standard_name_format
from orbit_ckpt._src.manager.steps import StepNames, as_step
from orbit_ckpt._src.storage.path import as_epath
from orbit_ckpt._src.text import warn_set
from orbit_ckpt._src.v1 import checkpoint_metadata, loading
from orbit_ckpt._src.v1.context import Context, current_context
from orbit_ckpt._src.v1.deletion import check_deletion, plan_deletion
from orbit_ckpt._src.v1.handlers import METRICS, STATE
from orbit_ckpt._src.v1.response import BackgroundResponse
from orbit_ckpt._src.v1.saving import check_checkpointables, item_to_save
from orbit_ckpt._src.v1.step_metadata import CheckpointMetadata, Step
from orbit_ckpt._src.v1.together import run_on_primary
from orbit_ckpt._src.v1.training_run import (
    RootMetadata,
    Run,
    StepOptions,
    StepResponse,
    run_options,
)
from orbit_ckpt._src.v1.types import AsyncResponse, JsonType, PathLike


@final
class Checkpointer:
    """Saves the steps of a run, deletes those that its policies do not keep, and loads them.

    Example:
        >>> from orbit_ckpt.v1 import training
        >>> newest = training.preservation_policies.LatestN(3)
        >>> with training.Checkpointer("run", preservation_policy=newest) as run:
        ...     for step in range(10):
        ...         _ = run.save(step, {"w": jax.numpy.full(3, step)})
    """

    def __init__(  # noqa: PLR0913 - Orbax's signature
        self,
        directory: PathLike,
        *,
        context: Context | None = None,
        save_decision_policy: SaveDecisionPolicy | None = None,
        preservation_policy: PreservationPolicy | None = None,
        step_name_format: StepNames | None = None,
        custom_metadata: JsonType | None = None,
        cleanup_tmp_directories: bool = False,
        lightweight_initialize: bool = False,
        logger: Any = None,
    ) -> None:
        """Open a run, or create one.

        Args:
            directory: The run's directory.
            context: The options; None for those of the active context. A context that is active
                when a method is called takes precedence.
            save_decision_policy: When to save; by default the first step, and every other one
                unless a save is in progress.
            preservation_policy: Which steps to keep; all by default.
            step_name_format: How steps are named.
            custom_metadata: A JSON object to store with the run.
            cleanup_tmp_directories: Whether to remove every unfinished save, also other writers'.
            lightweight_initialize: Ignored.
            logger: Receives one event per save.
        """
        why = "metadata of steps is read when it is asked for"
        warn_set("Checkpointer", {"lightweight_initialize": (lightweight_initialize, False, why)})
        self._context = Context(context or current_context())
        self._names = step_name_format or standard_name_format()
        options = run_options(
            self._context,
            save_decision_policy=save_decision_policy,
            preservation_policy=preservation_policy,
            step_name_format=self._names,
            cleanup_tmp_directories=cleanup_tmp_directories,
        )
        self._run = Run(directory, options=options, metadata=custom_metadata, logger=logger)

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return as_epath(self._run.directory)

    @property
    def checkpoints(self) -> Sequence[Step]:
        """The steps, ascending, with the one that is being saved; loading that one waits for it."""
        return [
            CheckpointMetadata(
                info.step,
                as_epath(self._run.path_of(info.step)),
                metadata=None,
                commit_timestamp_nsecs=int(info.time.timestamp() * 1e9),
                metrics=info.metrics,
            )
            for info in self._run.infos()
        ]

    @property
    def latest(self) -> Step | None:
        """The newest step, None if there is none; see `checkpoints`."""
        steps = self.checkpoints
        return steps[-1] if steps else None

    def should_save(self, step: int) -> bool:
        """Return whether `save` would save a step."""
        return self._run.should_save(step)

    def save(
        self,
        step: int,
        state: Any,
        *,
        checkpointable_name: str = STATE,
        **options: Unpack[StepOptions],
    ) -> bool:
        """Save a state if the policies ask for it; it is durable when this returns.

        Args:
            step: Number of the step.
            state: A tree.
            checkpointable_name: The name under which the step holds it.
            **options: `force` saves regardless of the policies, and `overwrite` deletes an existing
                step first; `metrics` is a JSON object of measurements, and `custom_metadata`
                one to store with the step.

        Returns:
            Whether it has been saved.

        Raises:
            StepAlreadyExistsError: The step exists and `overwrite` is not set.
            CheckpointError: The save failed; nothing was left behind.
        """
        return self.save_checkpointables(step, {checkpointable_name: state}, **options)

    def save_async(
        self,
        step: int,
        state: Any,
        *,
        checkpointable_name: str = STATE,
        **options: Unpack[StepOptions],
    ) -> AsyncResponse[bool] | None:
        """Save a state in the background; None if the policies do not ask for it. See `save`."""
        return self.save_checkpointables_async(step, {checkpointable_name: state}, **options)

    def save_checkpointables(
        self,
        step: int,
        checkpointables: dict[str, Any],
        **options: Unpack[StepOptions],
    ) -> bool:
        """Save several named checkpointables if the policies ask for it; see `save`."""
        response = self.save_checkpointables_async(step, checkpointables, **options)
        return False if response is None else response.result()

    def save_checkpointables_async(
        self,
        step: int,
        checkpointables: dict[str, Any],
        *,
        force: bool = False,
        overwrite: bool = False,
        metrics: JsonType | None = None,
        custom_metadata: JsonType | None = None,
    ) -> AsyncResponse[bool] | None:
        """Save several named checkpointables in the background; see `save` and `save_async`."""
        number = as_step(step)
        given = dict(check_checkpointables(checkpointables))
        if metrics:
            given[METRICS] = metrics
        pending = self._run.pending
        if pending is not None and pending.step == number:
            self._run.wait_until_finished()
        exists = number in self._run.all_steps()
        if exists and not overwrite:
            raise StepAlreadyExistsError(
                f"Step {number} already exists in {self.directory}. Save another step, or pass "
                "overwrite=True."
            )
        item = item_to_save(given, current_context(self._context))
        if exists:
            self._run.delete(number)
        is_saved = self._run.save(
            number, args=item, metrics=metrics, force=force, custom_metadata=custom_metadata
        )
        return StepResponse(self._run) if is_saved else None

    def load(
        self,
        step: int | CheckpointMetadata[Any] | None = None,
        abstract_state: Any = None,
        *,
        checkpointable_name: str = STATE,
    ) -> Any:
        """Load the state of a step.

        Args:
            step: Number of the step, or its metadata; None for the newest.
            abstract_state: As for `load` of the v1 API.
            checkpointable_name: The name of the state.

        Raises:
            StepNotFoundError: The step does not exist.
            ItemNotFoundError: The step has no such state.
        """
        name = checkpointable_name
        return self.load_checkpointables(step, {name: abstract_state})[name]

    def load_checkpointables(
        self,
        step: int | CheckpointMetadata[Any] | None = None,
        abstract_checkpointables: Any = None,
    ) -> dict[str, Any]:
        """Load several named checkpointables of a step; see `load_checkpointables`."""
        found = self._find(step)
        with current_context(self._context):
            return loading.load_checkpointables(found.path, abstract_checkpointables)

    def load_async(
        self, step: int | CheckpointMetadata[Any] | None = None, abstract_state: Any = None
    ) -> AsyncResponse[Any]:
        """Load the state of a step in the background; see `load`."""
        found = self._find(step)
        with current_context(self._context):
            return loading.load_async(found.path, abstract_state)

    def load_checkpointables_async(
        self,
        step: int | CheckpointMetadata[Any] | None = None,
        abstract_checkpointables: Any = None,
    ) -> AsyncResponse[dict[str, Any]]:
        """Load several named checkpointables of a step in the background."""
        found = self._find(step)
        with current_context(self._context):
            return loading.load_checkpointables_async(found.path, abstract_checkpointables)

    def metadata(
        self, step: int | CheckpointMetadata[Any] | None = None
    ) -> CheckpointMetadata[Any]:
        """Return metadata of a step, with an abstract form of its state."""
        found = self._find(step)
        with current_context(self._context):
            return _of_step(found, loading.metadata(found.path))

    def checkpointables_metadata(
        self, step: int | CheckpointMetadata[Any] | None = None
    ) -> CheckpointMetadata[dict[str, Any]]:
        """Return metadata of a step, with the abstract forms of its checkpointables by name."""
        found = self._find(step)
        with current_context(self._context):
            return _of_step(found, loading.checkpointables_metadata(found.path))

    def root_metadata(self) -> RootMetadata:
        """Return metadata of the run."""
        found = self._run.metadata()
        return RootMetadata(directory=self.directory, custom_metadata=found.custom_metadata)

    def delete(
        self,
        step: int | CheckpointMetadata[Any],
        *,
        checkpointable_name: str | None = None,
        missing_ok: bool = False,
    ) -> bool:
        """Delete a step, or one of its checkpointables; for the arguments see `delete`.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        number = as_step(step.step if isinstance(step, CheckpointMetadata) else step)
        self._run.wait_until_finished()
        exists = number in self._run.all_steps()
        if not exists and not missing_ok:
            raise self._missing(number)
        context = current_context(self._context)
        if exists and checkpointable_name is None:
            check_deletion(context, missing_ok=missing_ok)
            self._run.delete(number)  # another process may have begun to delete the files
            return True
        path = self._run.path_of(number) if exists else self._expected(number)
        work = plan_deletion(
            path, checkpointable_name, context, missing_ok=missing_ok, is_step=True
        )
        if work is None:
            return False
        if checkpointable_name is None:
            self._run.delete(number)
        else:
            run_on_primary(f"deletion of {checkpointable_name} of {path}", context, work)
        return True

    def delete_async(
        self,
        step: int | CheckpointMetadata[Any],
        *,
        checkpointable_name: str | None = None,
        missing_ok: bool = False,
    ) -> AsyncResponse[bool]:
        """Delete a step, or one of its checkpointables; the response is complete at once."""
        name = checkpointable_name
        deleted = self.delete(step, checkpointable_name=name, missing_ok=missing_ok)

        async def outcome() -> bool:
            return deleted

        return BackgroundResponse(outcome())

    def cancel(self, step: int | CheckpointMetadata[Any] | None = None) -> None:
        """Wait for the save in progress, and delete a step if it is given and exists.

        A save is not interrupted: it would take as long to remove what it has written.
        """
        self._run.wait_until_finished()
        if step is not None:
            self.delete(step, missing_ok=True)

    def reload(self) -> None:
        """Read the directory again, for steps that other processes wrote."""
        self._run.reload()

    def is_saving_in_progress(self) -> bool:
        """Return whether a background save is in progress."""
        return self._run.is_saving_in_progress()

    def wait(self) -> None:
        """Wait until no save is in progress.

        Raises:
            BackgroundSaveError: A save has failed; raised once.
        """
        self._run.wait_until_finished()

    def close(self) -> None:
        """Wait for saves in progress, and release resources."""
        self._run.close()

    @deprecated("Use save().")
    def save_pytree(self, *args: Any, **kwargs: Any) -> bool:
        """Call `save`."""
        return self.save(*args, **kwargs)

    @deprecated("Use save_async().")
    def save_pytree_async(self, *args: Any, **kwargs: Any) -> AsyncResponse[bool] | None:
        """Call `save_async`."""
        return self.save_async(*args, **kwargs)

    @deprecated("Use load().")
    def load_pytree(self, *args: Any, **kwargs: Any) -> Any:
        """Call `load`."""
        return self.load(*args, **kwargs)

    @deprecated("Use load_async().")
    def load_pytree_async(self, *args: Any, **kwargs: Any) -> AsyncResponse[Any]:
        """Call `load_async`."""
        return self.load_async(*args, **kwargs)

    @deprecated("Use metadata().")
    def pytree_metadata(self, *args: Any, **kwargs: Any) -> CheckpointMetadata[Any]:
        """Call `metadata`."""
        return self.metadata(*args, **kwargs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run.__exit__(kind, error, traceback)

    def _find(self, step: int | CheckpointMetadata[Any] | None) -> Step:
        if isinstance(step, CheckpointMetadata):
            step = step.step
        number = None if step is None else as_step(step)
        self._run.await_step(number)
        steps = self.checkpoints
        if number is None:
            if not steps:
                raise StepNotFoundError(f"There are no steps in {self.directory}.")
            return steps[-1]
        found = next((one for one in steps if one.step == number), None)
        if found is None:
            raise self._missing(number)
        return found

    def _missing(self, step: int) -> StepNotFoundError:
        there = [one.step for one in self.checkpoints]
        return StepNotFoundError(f"There is no step {step} in {self.directory}; it has {there}.")

    def _expected(self, step: int) -> Path:
        return self._run.directory / self._names.build_name(step)


def _of_step(
    step: Step, found: checkpoint_metadata.CheckpointMetadata[Any]
) -> CheckpointMetadata[Any]:
    return CheckpointMetadata(
        step.step,
        found.path,
        metadata=found.metadata,
        init_timestamp_nsecs=found.init_timestamp_nsecs,
        commit_timestamp_nsecs=found.commit_timestamp_nsecs,
        custom_metadata=found.custom_metadata,
        metrics=step.metrics,
    )
