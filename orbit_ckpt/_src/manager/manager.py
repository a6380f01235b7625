"""The checkpoints of one training run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from numpy.typing import DTypeLike

from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer
from orbit_ckpt._src.checkpointer.load_options import AbstractTree, LoadOptions, check_options
from orbit_ckpt._src.checkpointer.options import MultiprocessingOptions
from orbit_ckpt._src.checkpointer.pending_save import attach_cleanup_errors
from orbit_ckpt._src.checkpointer.wrong_arguments import suggest_target
from orbit_ckpt._src.errors import StepAlreadyExistsError
from orbit_ckpt._src.items.composite import Composite
from orbit_ckpt._src.items.registry import CheckpointHandlerRegistry
from orbit_ckpt._src.manager.changes import RunChanges
from orbit_ckpt._src.manager.coordinator import RunCoordinator
from orbit_ckpt._src.manager.options import CheckpointManagerOptions, own_options
from orbit_ckpt._src.manager.restore import index_of_other_run, restore_step
from orbit_ckpt._src.manager.shared_index import IndexUpdate, SharedIndex
from orbit_ckpt._src.manager.statistics import AbstractLogger, EventLog
from orbit_ckpt._src.manager.step_checks import (
    Handlers,
    check_metrics,
    handlers_of,
    plain_metrics,
    with_metrics,
)
from orbit_ckpt._src.manager.step_items import ItemRequest, StepItems
from orbit_ckpt._src.manager.step_store import StepStore
from orbit_ckpt._src.manager.steps import as_step
from orbit_ckpt._src.manager.template import Placement, abstract_of, check_template, initialize
from orbit_ckpt._src.manager.writer import StepRequest, StepWriter
from orbit_ckpt._src.runtime.checks import as_flag, check_mapping, check_methods
from orbit_ckpt._src.runtime.commit import ItemToSave
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.transform.patterns import PatternMap
from orbit_ckpt._src.transform.state import StateFunction

T = TypeVar("T")


class CheckpointManager(RunChanges):
    """Saves the steps of a run, deletes those that its policies do not keep, and restores them.

    A step is listed once it is durable; only then are older ones deleted. The error of a background
    save is raised once, naming its step, by the next call of `save`, `check_for_errors`,
    `wait_until_finished` or `close`. A `save` that raises it still starts its own save.

    Several processes open a run together and call the same methods in the same order. The primary
    decides, and a failure on one process fails on all. Queries wait for nobody: `all_steps()`,
    `latest_step`, `steps_with_item`, `best_step`, `metrics`, `metadata` and `retention` may be
    called on one process alone. A closed manager still answers them and restores, but raises
    `CheckpointError` where it would decide or change anything.

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
        logger: AbstractLogger | None = None,
        handler_registry: CheckpointHandlerRegistry | None = None,
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
            logger: Receives an event when a save or a restore returns, and when a step is durable;
                see `orbit_ckpt.logging`.
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
        self._writer = StepWriter(
            self._coordinator, handler, self._store, self._options, self._events
        )
        atomicity = self._options.atomicity_options
        self._checkpointer = Checkpointer(handler, atomicity_options=atomicity)

    def save(  # noqa: PLR0913 - Orbax's, and two of `orbit_ckpt.save`
        self,
        step: int,
        items: object = None,
        save_kwargs: Mapping[str, Any] | None = None,
        metrics: Mapping[str, object] | None = None,
        force: bool = False,
        args: object = None,
        custom_metadata: Mapping[str, object] | None = None,
        *,
        cast: PatternMap[object] | DTypeLike | None = None,
        transforms: Sequence[StateFunction] = (),
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
            cast: As for `orbit_ckpt.save`, for a step that is one tree.
            transforms: As for `orbit_ckpt.save`, for a step that is one tree.

        Returns:
            Whether the step is being saved, or has been.

        Raises:
            StepAlreadyExistsError: The step exists.
            BackgroundSaveError: An earlier save has failed; this one is in progress.
            StorageError: An old step could not be deleted; this save is in progress.
            TimeoutError: The job is about to be stopped and the save did not finish in time.
            CheckpointError: A handler failed; nothing was left behind.
        """
        number, called = as_step(step), time.time()
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
            measured = None if metrics is None else plain_metrics(metrics)
            saved = args
            if not isinstance(saved, ItemToSave):
                check_template(self._options.template, items if args is None else args)
                saved = self._items.to_save(
                    items, save_kwargs, args, cast=cast, transforms=transforms
                )
                if measured is not None and not self._options.prevent_write_metrics:
                    saved = with_metrics(saved, measured)
        except Exception as error:  # noqa: BLE001 - raised again once the other processes know
            self._writer.decline(number, path, decision, error)
        request = StepRequest(number, path, saved, decision, measured, custom_metadata)
        try:
            self._writer.save(request)
        finally:
            is_at_once, times = self._writer.saves_at_once(decision), self._writer.times
            ending = decision.is_ending
            self._events.saved(number, called, times, is_ending=ending, synchronous=is_at_once)
        return True

    def save_item(self, step: int, name: str, item: object = None, *, args: object = None) -> None:
        """Add an item to a saved step of named items; it is durable when this returns.

        If this process dies, the step has the whole item or is as before.

        Args:
            step: The step.
            name: The item's name.
            item: A pytree, or what the item's handler saves.
            args: Arguments of its handler instead.

        Raises:
            StepNotFoundError: The step does not exist.
            CheckpointExistsError: The step has an item of this name.
            ValueError: The step has no named items, or the manager is read-only.
            CheckpointError: The handler failed; nothing was left behind.
        """
        self._check_writable()
        number, call = as_step(step), f"save_item({step}, {name!r})"
        self._coordinator.check_open(call)
        path = self._steps_to_restore(self._directory, call).view.path(number)
        made = partial(self._items.to_add, path, name, item, args)
        self._writer.add_item(number, path / str(name), made)
        known = {info.step: info.metrics for info in self._store.view.infos()}
        self._change(call, number, lambda _: self._store.own.add(number, path, known[number]))

    @overload
    def restore(
        self,
        step: int | None = None,
        items: AbstractTree | None = None,
        restore_kwargs: Mapping[str, Any] | None = None,
        directory: PathLike | None = None,
        args: None = None,
        **options: Unpack[LoadOptions],
    ) -> Any: ...
    @overload
    def restore(
        self,
        step: int | None = None,
        items: None = None,
        restore_kwargs: Mapping[str, Any] | None = None,
        directory: PathLike | None = None,
        *,
        args: Composite,
    ) -> Composite: ...
    @overload
    def restore(
        self,
        step: int | None,
        items: T,
        restore_kwargs: Mapping[str, Any] | None = None,
        directory: PathLike | None = None,
        args: None = None,
        **options: Unpack[LoadOptions],
    ) -> T: ...
    @overload
    def restore(
        self,
        step: int | None = None,
        *,
        items: T,
        restore_kwargs: Mapping[str, Any] | None = None,
        directory: PathLike | None = None,
        args: None = None,
        **options: Unpack[LoadOptions],
    ) -> T: ...
    @overload
    def restore(
        self,
        step: int | None = None,
        items: object = None,
        restore_kwargs: Mapping[str, Any] | None = None,
        directory: PathLike | None = None,
        args: object = None,
        **options: Unpack[LoadOptions],
    ) -> Any: ...
    @suggest_target("items")
    def restore(
        self,
        step: int | None = None,
        items: object = None,
        restore_kwargs: Mapping[str, Any] | None = None,
        directory: PathLike | None = None,
        args: object = None,
        **options: Unpack[LoadOptions],
    ) -> Any:  # the item, whatever it is, or a composite of items
        """Restore a step.

        Args:
            step: Its number, None for the newest.
            items: Target of the item, or targets by name; None for what was saved.
            restore_kwargs: Further arguments of the handler, or of handlers by item.
            directory: Another run's directory to restore from.
            args: Arguments of the only item, or `args.Composite` of several.
            **options: Those of `orbit_ckpt.load`, for an item that is a tree, or for several named
                in `items`. `fallback=True` restores the newest intact older step if this one is
                damaged: `refused` then holds the damaged steps and their errors; they are no longer
                listed, and saving them again replaces them.

        Returns:
            The item, or an `args.Composite` of items.

        Raises:
            StepNotFoundError: The step does not exist, or no step can be restored.
            CorruptionError: Stored data is missing or damaged.
            CheckpointError: A handler failed.
        """
        check_options("restore", options, LoadOptions)
        older = isinstance(options.get("fallback"), bool) and bool(options.pop("fallback"))
        wanted, called = ItemRequest(items, restore_kwargs, args, options), time.time()

        def read(number: int, path: Path) -> Any:  # as above
            begun = time.time()
            restored = self._items.restore(self._checkpointer, path, wanted)
            self._events.restored(number, called, begun)
            return restored

        root = self._directory if directory is None else resolve_path(directory)
        shared = self._steps_to_restore(root, f"restore({step})")
        return restore_step(
            shared,
            step,
            read,
            self._coordinator,
            root=root,
            fallback=older,
            note_damage=self._writer.base.distrust_steps,
        )

    def restore_or_init(
        self,
        init: Callable[[], T],
        *,
        sharding: Placement = None,
        fallback: bool = False,
    ) -> T:
        """Restore the newest step, or compute the initial state if there is none.

        Args:
            init: Returns the initial state, a tree of arrays. It is compiled with `sharding` as the
                shardings of its results. If a step is restored, it is only traced, for its
                structure, shapes and dtypes.
            sharding: Shardings of the state, as for `orbit_ckpt.load`.
            fallback: Whether to restore an older step if the newest is damaged; see `restore`.

        Raises:
            CheckpointError: The step cannot be restored.
        """
        if self._steps_to_restore(self._directory, "restore_or_init()").view.latest() is None:
            return initialize(init, sharding)
        target: Any = abstract_of(init)
        return self.restore(items=target, sharding=sharding, fallback=fallback)

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
