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
from orbit_ckpt._src.manager.root_metadata import read_root_metadata
from orbit_ckpt._src.manager.shared_index import IndexUpdate, SharedIndex
from orbit_ckpt._src.manager.step_info import rank
from orbit_ckpt._src.manager.step_items import (
    Handlers,
    ItemRequest,
    StepItems,
    check_metrics,
    handlers_of,
    plain_metrics,
    with_metrics,
)
from orbit_ckpt._src.manager.step_store import StepStore
from orbit_ckpt._src.manager.steps import as_step
from orbit_ckpt._src.manager.writer import StepRequest, StepWriter
from orbit_ckpt._src.runtime.checks import as_flag, check_mapping, check_methods
from orbit_ckpt._src.storage.path import PathLike, resolve_path

_logger = logging.getLogger(__name__)


class CheckpointManager:
    """Saves steps of a run, keeps those that its policies want, and restores them.

    A step is listed once it is durable, and an old one deleted only after that. An error of a save
    in the background is raised once, naming its step, by whichever method is called next of `save`,
    `check_for_errors`, `wait_until_finished` and `close`; a save that raises it is begun all the
    same.

    Several processes open a run together and call the same methods in the same order. The primary
    one decides, and what fails on one fails on all. Asking what is there waits for nobody:
    `all_steps()`, `latest_step`, `best_step`, `metrics`, `metadata` and `retention` may be called
    on one process alone. After `close` a manager still answers these and restores, but raises
    `CheckpointError` where it would decide or change anything.

    A process that is forked while a save is in progress does not own that save: the child's manager
    neither waits for it nor removes it, and `wait_until_finished` raises. A child of several
    processes is none of them, and its manager behaves as after `close`.

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
        """Open a run, or begin one.

        Args:
            directory: The run's directory.
            checkpointers: One checkpointer, or some by item, whose handlers are used; Orbax's old
                way to say `item_handlers`.
            options: When to save, what to keep, and how.
            metadata: A JSON object to keep with the run; the first one given stays. If nothing may
                be written, it is that of this manager only.
            item_names: Names of items whose handlers follow from their arguments.
            item_handlers: The handler of the only item, or handlers by item.
            logger: Is told of every save and restore.
            handler_registry: Handlers by item and arguments.

        Raises:
            StorageError: The directory cannot be made or read.
            ValueError: Arguments contradict each other, or the directory is a checkpoint.
            ProcessFailedError: Another process could not open it.
            ProcessTimeoutError: Another process has not opened it in time.
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
        except BaseException as error:  # raised again once the others know
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
        """Save a step if the policies say so.

        When this returns, the items may be changed, deleted or donated.

        Args:
            step: Its number.
            items: A pytree; or the item, or items by name, of the handlers that the manager was
                made with.
            save_kwargs: Further arguments of the handler, or of handlers by item.
            metrics: What was measured, a JSON object whose numbers may be numpy's or JAX's scalars.
            force: Whether to save whatever the policies say.
            args: Arguments of the only item, or `args.Composite` of several.
            custom_metadata: A JSON object to keep with the step.

        Returns:
            Whether the step is being saved, or has been.

        Raises:
            StepAlreadyExistsError: It has been saved before.
            BackgroundSaveError: An earlier save has failed; this one is in progress.
            StorageError: An old step could not be deleted; this save is in progress.
            TimeoutError: The job is about to be stopped and the save did not end before that.
            CheckpointError: What handlers raise; nothing was left behind.
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
        except Exception as error:  # noqa: BLE001 - raised again, once the others know
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
            fallback: Whether to restore the newest older step whose data is intact if this one's is
                not. `refused` then says which were not and why; they are not listed any more, and
                are replaced if they are saved again.

        Returns:
            The item, or an `args.Composite` of items.

        Raises:
            StepNotFoundError: There is no such step, or no step that can be restored.
            CorruptionError: Stored data is missing or damaged.
            CheckpointError: What handlers raise.
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
        """Steps that `restore` with `fallback` could not restore, and why."""
        return self._store.view.refused

    def should_save(self, step: int) -> bool:
        """Return whether `save` would save a step."""
        number = as_step(step)
        return self._writer.decide(number, f"should_save({number})").save

    def all_steps(self, read: bool = False) -> list[int]:
        """Return the durable steps, ascending.

        Args:
            read: Whether to look at the directory again, because others write into it.
        """
        if as_flag("read", read):
            self.reload()
        return self._store.view.steps()

    def latest_step(self) -> int | None:
        """Return the newest durable step, None if there is none."""
        return self._store.view.latest()

    def best_step(self) -> int | None:
        """Return the best step by `best_fn`, the newest without it, None if there is none."""
        if self._options.best_fn is None:
            return self.latest_step()
        infos = self._store.view.infos(with_metrics=True)
        measured = [info for info in infos if info.metrics is not None]
        ranked = rank(measured, self._options.best_fn, self._options.best_mode)
        return measured[ranked[-1]].step if ranked else None

    def metrics(self, step: int) -> Mapping[str, object] | None:
        """Return the metrics that a step was saved with, None if there are none."""
        return read_metrics(self._store.view.path(as_step(step)))

    def item_metadata(self, step: int) -> Any:  # of the item, whatever it is, or a composite
        """Return what is known of a step's item, or of its items, without reading arrays."""
        return self.metadata(as_step(step)).item_metadata

    def metadata(self, step: int | None = None) -> Any:  # RootMetadata or StepMetadata
        """Return `StepMetadata` of a step, or `RootMetadata` of the run; logs unreadable metrics.

        Raises:
            StepNotFoundError: There is no such step.
        """
        if step is None:
            return read_root_metadata(self._directory, self._metadata)
        path = self._store.view.path(as_step(step))
        found = self._items.metadata(self._checkpointer, path)
        return replace(found, metrics={**found.metrics, **readable_metrics(step, path)})

    def reload(self) -> None:
        """Look at the directory again, because others write into it."""

        def read() -> IndexUpdate:
            self._store.shared.reload()
            return self._writer.pending_update()

        self._store.apply_update(self._coordinator.decide("reload()", read, IndexUpdate))

    def retention(self) -> RetentionPlan:
        """Return what the policies would keep and delete now, and why; deletes nothing."""
        return self._store.plan()

    def delete(self, step: int) -> None:
        """Delete a step.

        Raises:
            StepNotFoundError: There is no such step.
            StorageError: The storage refused.
        """
        if self._options.read_only:
            _logger.warning("%s is read-only: step %d is not deleted", self._directory, step)
            return
        self._change(f"delete({step})", as_step(step), self._store.delete)
        self._store.errors.raise_any()

    def pin(self, step: int) -> None:
        """Keep a step whatever the policies say, also if it is temporary.

        Raises:
            StepNotFoundError: There is no such step.
            ValueError: The manager is read-only.
        """
        self._check_writable()
        self._change(f"pin({step})", as_step(step), partial(self._store.set_pinned, pinned=True))

    def unpin(self, step: int) -> None:
        """Keep a step only as long as the policies say.

        Raises:
            StepNotFoundError: There is no such step.
            ValueError: The manager is read-only.
        """
        self._check_writable()
        self._change(f"unpin({step})", as_step(step), partial(self._store.set_pinned, pinned=False))

    def install_signal_handler(
        self, signum: int, *, deadline: float | timedelta | None = None
    ) -> None:
        """Save when a signal announces the end of the process, SIGTERM for example.

        From then on `should_save` is true, and `save` returns once the step is durable. A handler
        that was there before is called too.

        Args:
            signum: Which signal.
            deadline: Seconds, or time, between the signal and the end of the process; `save` raises
                `TimeoutError` if the step is not durable then.

        Raises:
            RuntimeError: This is not the main thread.
        """
        self._coordinator.check_open(f"install_signal_handler({signum})")
        seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else deadline
        self._writer.watch.install(signum, deadline_s=seconds)

    def reached_preemption(self, step: int) -> bool:
        """Whether the job is about to be stopped, by a watched signal or JAX's service."""
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
        """Raise what has failed in the background, without waiting.

        Raises:
            BackgroundSaveError: A save has failed; raised once.
            StorageError: A deletion has failed; raised once.
        """
        self._writer.check()

    def is_saving_in_progress(self) -> bool:
        """Whether a background save is in progress."""
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
        """Have the primary process change a step.

        Raises:
            StepNotFoundError: There is no such step.
        """
        self._coordinator.check_open(call)
        self._store.view.path(step)

        def act() -> IndexUpdate:
            change(step)
            return self._writer.pending_update()

        self._store.apply_update(self._coordinator.decide(call, act, IndexUpdate))

    def _steps_to_restore(self, root: Path, call: str) -> SharedIndex:
        """Wait for the pending save; return the steps of this run, or of another one."""
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

    def _check_writable(self) -> None:
        if self._options.read_only:
            raise ValueError(f"{self._directory} is opened read-only; open it without read_only.")
