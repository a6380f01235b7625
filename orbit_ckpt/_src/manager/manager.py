"""The checkpoints of one training run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer
from orbit_ckpt._src.checkpointer.options import MultiprocessingOptions
from orbit_ckpt._src.checkpointer.pending_save import attach_cleanup_errors
from orbit_ckpt._src.checkpointer.wrong_arguments import suggest_target
from orbit_ckpt._src.errors import StepAlreadyExistsError
from orbit_ckpt._src.items.registry import DefaultCheckpointHandlerRegistry
from orbit_ckpt._src.manager.coordinator import RunCoordinator
from orbit_ckpt._src.manager.index import read_metrics, readable_metrics
from orbit_ckpt._src.manager.options import CheckpointManagerOptions, own_options
from orbit_ckpt._src.manager.restore import (
    EventLog,
    StatisticsLogger,
    index_of_other_run,
    restore_step,
)
from orbit_ckpt._src.manager.retention import RetentionPlan
from orbit_ckpt._src.manager.shared_index import IndexUpdate, SharedIndex
from orbit_ckpt._src.manager.step_items import (
    Handlers,
    ItemRequest,
    StepItems,
    check_metrics,
    handlers_of,
    plain_metrics,
    with_metrics,
)
from orbit_ckpt._src.manager.step_store import StepStore, read_root_metadata
from orbit_ckpt._src.manager.steps import as_step
from orbit_ckpt._src.manager.writer import StepRequest, StepWriter
from orbit_ckpt._src.runtime.checks import as_flag, check_mapping, check_methods
from orbit_ckpt._src.storage.path import PathLike, resolve_path

_logger = logging.getLogger(__name__)


class CheckpointManager:
    """Saves the steps of a run, deletes those that its policies do not keep, and restores them.

    A step is listed once it is durable; only then are older ones deleted. The error of a background
    save is raised once, naming its step, by the next call of `save`, `check_for_errors`,
    `wait_until_finished` or `close`. If that is `save`, it still starts its own save.

    Several processes open a run together and call the same methods in the same order. The primary
    decides, and a failure on one process fails on all. Queries wait for nobody: `all_steps()`,
    `latest_step`, `best_step`, `metrics`, `metadata` and `retention` may be called on one process
    alone. A closed manager still answers them and restores, but raises `CheckpointError` where it
    would decide or change anything.

    A process forked during a save does not own that save: the child's manager neither waits for it
    nor removes it, and `wait_until_finished` raises. A child of a multi-process run belongs to none
    of its processes; its manager behaves as if closed.

    Example:
        >>> with CheckpointManager("run", options=CheckpointManagerOptions(max_to_keep=3)) as run:
        ...     for step in range(10):
        ...         _ = run.save(step, {"w": jax.numpy.full(3, step)})
        >>> CheckpointManager("run").all_steps()
        [7, 8, 9]
    """

    def __init__(  # noqa: PLR0913, PLR0917 - Orbax's signature
        self,
        directory: PathLike,
        checkpointers: Checkpointer | Mapping[str, Checkpointer] | None = None,
        options: CheckpointManagerOptions | None = None,
        metadata: Mapping[str, object] | None = None,
        item_names: Sequence[str] | None = None,
        item_handlers: Handlers = None,
        logger: StatisticsLogger | None = None,
        handler_registry: DefaultCheckpointHandlerRegistry | None = None,
    ) -> None:
        """Open a run, or create one.

        Args:
            directory: The run's directory.
            checkpointers: One checkpointer, or checkpointers by item, whose handlers are used;
                Orbax's old form of `item_handlers`.
            options: When to save, what to keep, and how.
            metadata: A JSON object to store with the run; the first one stored stays. A read-only
                manager uses it without storing it.
            item_names: Names of items whose handlers follow from their arguments.
            item_handlers: The handler of the only item, or handlers by item.
            logger: Receives one event per save and restore.
            handler_registry: Handlers by item and arguments.

        Raises:
            StorageError: The directory cannot be created or read.
            ValueError: Arguments contradict each other, or the directory is a checkpoint.
            ProcessFailedError: Another process could not open the run.
            ProcessTimeoutError: Another process has not opened the run in time.
        """
        self._options = own_options(options)
        check_mapping("metadata", metadata, "Give {'name': 'value'}, for example.")
        entries = "Give an object whose log_entry() takes a dict."
        check_methods("logger", logger, ["log_entry"], entries)
        self._directory = resolve_path(directory)
        self._metadata = dict(metadata or {})
        self._events = EventLog(logger, self._directory)
        processes = self._options.multiprocessing_options or MultiprocessingOptions()
        name = f"run {self._directory}"
        self._coordinator = RunCoordinator(processes.find_group(), name, processes.timeout_s)
        try:
            if checkpointers is not None:
                item_handlers, is_async = handlers_of(checkpointers, item_handlers)
                self._options.enable_async_checkpointing &= is_async
            self._items = StepItems(item_handlers, item_names, handler_registry)
            self._store = StepStore(self._directory, self._coordinator, self._options)
            self._store.open(metadata)
        except BaseException as error:  # raised again once the other processes know
            self._coordinator.leave(error)
            raise
        handler = self._items.handler
        self._writer = StepWriter(self._coordinator, handler, self._store, self._options)
        atomicity = self._options.atomicity_options
        self._checkpointer = Checkpointer(handler, atomicity_options=atomicity)

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self._directory

    def save(
        self,
        step: int,
        items: object = None,
        save_kwargs: Mapping[str, Any] | None = None,
        metrics: Mapping[str, object] | None = None,
        force: bool = False,
        args: object = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> bool:
        """Save a step if the policies ask for it.

        The items may be changed, deleted or donated as soon as this returns.

        Args:
            step: Its number.
            items: A pytree; or the item, or items by name, for the handlers given to the manager.
            save_kwargs: Further arguments of the handler, or of handlers by item.
            metrics: A JSON object of measurements; numbers may be numpy or JAX scalars.
            force: Whether to save regardless of the policies.
            args: Arguments of the only item, or `args.Composite` of several.
            custom_metadata: A JSON object to store with the step.

        Returns:
            Whether the step is being saved, or has been.

        Raises:
            StepAlreadyExistsError: The step exists.
            BackgroundSaveError: An earlier save has failed; this one is in progress.
            StorageError: An old step could not be deleted; this save is in progress.
            TimeoutError: The job is about to be stopped and the save did not finish in time.
            CheckpointError: A handler failed; nothing was left behind.
        """
        number = as_step(step)
        check_metrics(metrics)
        force = as_flag("force", force)
        decision = self._writer.decide(number, f"save({number})", force=force)
        if not decision.save:
            self._writer.raise_failed(has_ended=decision.update.has_ended)
            return False
        if decision.exists:
            raise StepAlreadyExistsError(
                f"Step {number} of {self._directory} exists. Save another step, or delete it first."
            )
        path = self._directory / self._options.step_names().build_name(number)
        try:
            composite = self._items.to_save(items, save_kwargs, args)
            measured = None if metrics is None else plain_metrics(metrics)
            if measured is not None and not self._options.prevent_write_metrics:
                composite = with_metrics(composite, measured)
        except Exception as error:  # noqa: BLE001 - raised again once the other processes know
            self._writer.decline(number, path, decision, error)
        request = StepRequest(number, path, composite, decision, measured, custom_metadata)
        try:
            self._writer.save(request)
        finally:
            self._events.add("save", number, self._writer.blocked)
        return True

    @suggest_target("items")
    def restore(
        self,
        step: int | None = None,
        items: object = None,
        restore_kwargs: Mapping[str, Any] | None = None,
        directory: PathLike | None = None,
        args: object = None,
        *,
        fallback: bool = False,
    ) -> Any:  # the item, whatever it is, or a composite of items
        """Restore a step.

        Args:
            step: Its number, None for the newest.
            items: Target of the item, or targets by name; None for what was saved.
            restore_kwargs: Further arguments of the handler, or of handlers by item.
            directory: Another run's directory to restore from.
            args: Arguments of the only item, or `args.Composite` of several.
            fallback: Whether to restore the newest intact older step if this one is damaged.
                `refused` then holds the damaged steps and their errors; they are no longer listed,
                and saving them again replaces them.

        Returns:
            The item, or an `args.Composite` of items.

        Raises:
            StepNotFoundError: The step does not exist, or no step can be restored.
            CorruptionError: Stored data is missing or damaged.
            CheckpointError: A handler failed.
        """
        wanted = ItemRequest(items, restore_kwargs, args)

        def read(number: int, path: Path) -> Any:  # as above
            began = time.monotonic()
            restored = self._items.restore(self._checkpointer, path, wanted)
            self._events.add("restore", number, timedelta(seconds=time.monotonic() - began))
            return restored

        fallback = as_flag("fallback", fallback)
        root = self._directory if directory is None else resolve_path(directory)
        shared = self._steps_to_restore(root, f"restore({step})")
        return restore_step(shared, step, read, self._coordinator, root=root, fallback=fallback)

    @property
    def refused(self) -> Mapping[int, Exception]:
        """Steps that `restore(fallback=True)` could not restore, and why."""
        return self._store.view.refused

    def should_save(self, step: int) -> bool:
        """Return whether `save` would save a step."""
        number = as_step(step)
        return self._writer.decide(number, f"should_save({number})").save

    def all_steps(self, read: bool = False) -> list[int]:
        """Return the durable steps, ascending.

        Args:
            read: Whether to read the directory again, for steps that other processes wrote.
        """
        if as_flag("read", read):
            self.reload()
        return self._store.view.steps()

    def latest_step(self) -> int | None:
        """Return the newest durable step, None if there is none."""
        return self._store.view.latest()

    def best_step(self) -> int | None:
        """Return the best step by `best_fn`, the newest without one, None if there are none."""
        if self._options.best_fn is None:
            return self.latest_step()
        return self._store.view.best(self._options.best_fn, self._options.best_mode)

    def metrics(self, step: int) -> Mapping[str, object] | None:
        """Return the metrics saved with a step, None if it has none."""
        return read_metrics(self._store.view.path(as_step(step)))

    def item_metadata(self, step: int) -> Any:  # of the item, whatever it is, or a composite
        """Return metadata of a step's item or items, without reading arrays."""
        return self.metadata(as_step(step)).item_metadata

    def metadata(self, step: int | None = None) -> Any:  # RootMetadata or StepMetadata
        """Return `StepMetadata` of a step, or `RootMetadata` of the run; log unreadable metrics.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        if step is None:
            return read_root_metadata(self._directory, self._metadata)
        path = self._store.view.path(as_step(step))
        found = self._items.metadata(self._checkpointer, path)
        return replace(found, metrics={**found.metrics, **readable_metrics(step, path)})

    def reload(self) -> None:
        """Read the directory again, for steps that other processes wrote."""

        def read() -> IndexUpdate:
            self._store.shared.reload()
            return self._writer.pending_update()

        self._store.apply_update(self._coordinator.decide("reload()", read, IndexUpdate))

    def retention(self) -> RetentionPlan:
        """Return which steps the policies keep and delete now, and why; delete nothing."""
        return self._store.plan()

    def delete(self, step: int) -> None:
        """Delete a step.

        Raises:
            StepNotFoundError: The step does not exist.
            StorageError: The storage refused.
        """
        if self._options.read_only:
            _logger.warning("%s is read-only: step %d is not deleted", self._directory, step)
            return
        self._change(f"delete({step})", as_step(step), self._store.delete)
        self._store.errors.raise_any()

    def pin(self, step: int) -> None:
        """Keep a step, even a temporary one, regardless of the policies.

        Raises:
            StepNotFoundError: The step does not exist.
            ValueError: The manager is read-only.
        """
        self._set_pinned(step, f"pin({step})", pinned=True)

    def unpin(self, step: int) -> None:
        """Leave a step to the policies again.

        Raises:
            StepNotFoundError: The step does not exist.
            ValueError: The manager is read-only.
        """
        self._set_pinned(step, f"unpin({step})", pinned=False)

    def install_signal_handler(
        self, signum: int, *, deadline: float | timedelta | None = None
    ) -> None:
        """Save when a signal such as SIGTERM announces the end of the process.

        After the signal `should_save` is true, and `save` returns once the step is durable. The
        previous signal handler is called too.

        Args:
            signum: The signal.
            deadline: Seconds, or `timedelta`, between the signal and the end of the process; `save`
                raises `TimeoutError` if the step is not durable by then.

        Raises:
            RuntimeError: This is not the main thread.
        """
        self._coordinator.check_open(f"install_signal_handler({signum})")
        seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else deadline
        self._writer.watch.install(signum, deadline_s=seconds)

    def reached_preemption(self, step: int) -> bool:
        """Return whether a signal or JAX's preemption service announces the end of the job."""
        number = as_step(step)
        return self._writer.reached_preemption(number, f"reached_preemption({number})")

    def wait_until_finished(self) -> None:
        """Wait until no save and no deletion is in progress.

        Raises:
            BackgroundSaveError: A save has failed; raised once.
            StorageError: A deletion has failed; raised once.
        """
        self._writer.finish()

    def check_for_errors(self) -> None:
        """Raise errors of background work without waiting.

        Raises:
            BackgroundSaveError: A save has failed; raised once.
            StorageError: A deletion has failed; raised once.
        """
        self._writer.check()

    def is_saving_in_progress(self) -> bool:
        """Return whether a background save is in progress."""
        return self._writer.is_running()

    def close(self) -> None:
        """Wait for saves and deletions in progress, and release resources.

        Raises:
            BackgroundSaveError: A save has failed; raised once.
            StorageError: A deletion has failed; raised once.
        """
        try:
            self._writer.close()
        finally:
            self._coordinator.leave()
            self._checkpointer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._coordinator.leave(error)  # else the others would wait for this process
        with attach_cleanup_errors(error):
            self.close()

    def _change(self, call: str, step: int, change: Callable[[int], object]) -> None:
        """Change a step on the primary process.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        self._coordinator.check_open(call)
        self._store.view.path(step)

        def act() -> IndexUpdate:
            change(step)
            return self._writer.pending_update()

        self._store.apply_update(self._coordinator.decide(call, act, IndexUpdate))

    def _steps_to_restore(self, root: Path, call: str) -> SharedIndex:
        """Wait for the pending save; return the steps of this or another run."""
        is_own = root == self._directory
        names = self._options.step_names()
        shared = (
            self._store.shared if is_own else index_of_other_run(root, names, self._coordinator)
        )

        def read() -> IndexUpdate:
            if is_own:
                return self._writer.pending_update()
            shared.reload()
            return shared.pending_update()

        with self._coordinator.round(call) as current:
            self._writer.wait()
            current.gather()
            update = current.broadcast(read, IndexUpdate)
        if is_own:
            self._store.apply_update(update)
        else:
            shared.apply(update)
        return shared

    def _set_pinned(self, step: int, call: str, *, pinned: bool) -> None:
        if self._options.read_only:
            raise ValueError(f"{self._directory} is opened read-only; open it without read_only.")
        self._change(call, as_step(step), partial(self._store.set_pinned, pinned=pinned))
