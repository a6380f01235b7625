"""Decide which steps of a run are saved, and save them one after another."""

from __future__ import annotations

import logging
import operator
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from orbit_ckpt._src.checkpointer.handle import SaveHandle
from orbit_ckpt._src.checkpointer.options import (
    AsyncOptions,
    AtomicityOptions,
    MultiprocessingOptions,
    SessionOptions,
)
from orbit_ckpt._src.checkpointer.pending_save import PendingSave, attach_cleanup_errors
from orbit_ckpt._src.checkpointer.save import (
    SaveRequest,
    begin_save,
    decline_save,
    handled_item,
    save_now,
)
from orbit_ckpt._src.errors import (
    BackgroundSaveError,
    CheckpointExistsError,
    ProcessFailedError,
    ProcessTimeoutError,
    StepAlreadyExistsError,
)
from orbit_ckpt._src.items.composite import Composite, CompositeHandler
from orbit_ckpt._src.manager.coordinator import PreemptionWatch, Round, RunCoordinator
from orbit_ckpt._src.manager.options import CheckpointManagerOptions
from orbit_ckpt._src.manager.recorded_rules import record_rules
from orbit_ckpt._src.manager.save_base import BaseChoice
from orbit_ckpt._src.manager.save_policies import (
    DecisionContext,
    PreemptionCheckpointingPolicy,
    SaveDecision,
    decide,
)
from orbit_ckpt._src.manager.shared_index import IndexUpdate
from orbit_ckpt._src.manager.statistics import EventLog, SaveTimes
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.manager.step_store import StepStore
from orbit_ckpt._src.metadata.step_details import StepDetails
from orbit_ckpt._src.runtime.commit import ItemToSave

_logger = logging.getLogger(__name__)

_step_of: Callable[[StepInfo], int] = operator.attrgetter("step")


class StepDecision(Struct, frozen=True):
    """The fate of the current training step, identical on all processes.

    Attributes:
        save: Whether to save it.
        temporary: Whether to keep it only until the next one is durable.
        exists: Whether it is listed or being saved already.
        is_ending: Whether a signal has announced the end of the job.
        seconds: Seconds until it ends, None if unknown.
        update: The other changes.
    """

    save: bool = False
    temporary: bool = False
    exists: bool = False
    is_ending: bool = False
    seconds: float | None = None
    update: IndexUpdate = IndexUpdate()


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One step to save.

    Attributes:
        step: Its number.
        path: Its directory.
        items: Arguments of its items, or all of them as one.
        decision: How to save it.
        metrics: Its metrics, None for those among the items.
        custom_metadata: A JSON object to store with it.
    """

    step: int
    path: Path
    items: Composite | ItemToSave
    decision: StepDecision
    metrics: Mapping[str, object] | None = None
    custom_metadata: Mapping[str, object] | None = None


class StepWriter:
    """Saves steps, lists them once durable, and deletes those that they make superfluous.

    Attributes:
        watch: Notices signals that announce the end of the job.
        base: Chooses the step that an incremental save shares files with.
        blocked: How long the last save blocked its caller, None before the first one.
        times: When its phases began.
    """

    def __init__(
        self,
        coordinator: RunCoordinator,
        handler: CompositeHandler,
        store: StepStore,
        options: CheckpointManagerOptions,
        events: EventLog,
    ) -> None:
        """Make a writer.

        Args:
            coordinator: The processes of the run.
            handler: Writes the items.
            store: The steps of the run.
            options: When to save, and how.
            events: Receives an event once a step is durable.
        """
        self.watch = PreemptionWatch()
        self.base = BaseChoice(store)
        self.blocked: timedelta | None = None
        self.times = SaveTimes(0.0)
        self._coordinator = coordinator
        self._handler = handler
        self._store = store
        self._options, self._events = options, events
        self._async = options.async_options or AsyncOptions()
        self._session = _session_options(options, self._async)
        self._policy = options.decision_policy()
        self._pending = PendingSave(self._async.timeout_secs)
        self._snapshots = self._async.snapshots()
        self._started = options.now()

    def decide(self, step: int, call: str, *, force: bool = False) -> StepDecision:
        """Decide what happens to a step.

        Args:
            step: Its number.
            call: The method called, the same on all processes.
            force: Whether to save it regardless of the policies.

        Raises:
            CheckpointError: The manager is closed.
        """
        self._coordinator.check_open(call)
        is_preempted = self._post_ending(step)
        decision = self._coordinator.decide(
            call, lambda: self._decide(step, is_preempted, force=force), StepDecision
        )
        self._store.apply_update(decision.update)
        self.watch.report(decision.is_ending or is_preempted)
        return decision

    def reached_preemption(self, step: int, call: str) -> bool:
        """Return whether the job is about to end; see `decide` for the arguments."""
        is_preempted = self._post_ending(step)
        ends = self._coordinator.decide(call, lambda: is_preempted or bool(self._endings()), bool)
        self.watch.report(ends)
        return ends

    def _post_ending(self, step: int) -> bool:
        """Report a signal to the primary; return whether JAX's service announces a preemption."""
        if self.watch.received and not self._coordinator.is_primary:
            self._coordinator.post_ending(self.watch.seconds_left)
        return self.watch.service_says(step)

    def _endings(self) -> list[float | None]:
        """Return the seconds left to each process that has received a signal."""
        mine = [self.watch.seconds_left] if self.watch.received else []
        return [*self._coordinator.endings(), *mine]

    def _decide(self, step: int, is_preempted: bool, *, force: bool) -> StepDecision:
        """Decide for all processes."""
        endings = self._endings()
        decision = self._ask_policies(step, is_preempted, is_ending=bool(endings))
        return StepDecision(
            save=not self._options.read_only and (force or bool(decision)),
            temporary=decision.temporary and not force,
            exists=step == self._pending.step or step in self._store.own,
            is_ending=bool(endings),
            seconds=min((seconds for seconds in endings if seconds is not None), default=None),
            update=self.pending_update(),
        )

    def _ask_policies(self, step: int, is_preempted: bool, *, is_ending: bool) -> SaveDecision:
        running = self._pending.step  # read before the listed steps, which it may join at any time
        infos = self._store.own.infos()
        now = self._options.now()
        if step == 0:
            self._started = now  # excludes earlier work, such as compilation
        if running is not None:
            place = bisect_left(infos, running, key=_step_of)
            if place == len(infos) or infos[place].step != running:
                infos.insert(place, StepInfo(running, now))
        if infos and infos[-1].step >= step:
            return SaveDecision()
        if is_ending:  # regardless of the policies
            return SaveDecision((PreemptionCheckpointingPolicy(),))
        checks_running = self._options.enable_should_save_is_saving_in_progress_check
        context = DecisionContext(
            is_saving_in_progress=checks_running and self.is_running(),
            reached_preemption=is_preempted,
            started=self._started,
            blocked=self.blocked,
            multiprocessing_options=self._session.multiprocessing,
        )
        return decide(self._policy, StepInfo(step, now), infos, context=context)

    def pending_update(self) -> IndexUpdate:
        """Return the changes that the other processes do not know yet."""
        has_ended = not self._pending.is_running()  # read before the steps, which it may join
        return self._store.pending_update(has_ended=has_ended)

    def save(self, request: StepRequest) -> None:
        """Start saving a step once the previous save has ended.

        Raises:
            StepAlreadyExistsError: Another program has saved it.
            BackgroundSaveError: The previous save has failed; this one is in progress.
            StorageError: An old step could not be deleted; this save is in progress.
            TimeoutError: The process is about to end and a save did not finish in time.
            CheckpointError: A handler failed; nothing was left behind.
        """
        began = time.monotonic()
        self.times = SaveTimes(time.time())
        try:
            if self.saves_at_once(request.decision):
                with self._end_of_save(request.step) as end:
                    self._begin_after_pending(request)
                    end.gather()
                    update = end.broadcast(self.pending_update, IndexUpdate)
                self._store.apply_update(update)
            else:
                self._begin_after_pending(request)
        except BackgroundSaveError as error:
            self._store.errors.attach_to(error)
            raise
        except CheckpointExistsError as error:
            raise StepAlreadyExistsError(str(error)) from error
        finally:
            self.blocked = timedelta(seconds=time.monotonic() - began)
        self._store.errors.raise_any()

    def add_item(self, step: int, path: Path, make: Callable[[], ItemToSave]) -> None:
        """Save an item into a step; it is durable when this returns.

        Args:
            step: The step.
            path: The item.
            make: Returns the item.

        Raises:
            CheckpointExistsError: The item exists.
            CheckpointError: The handler failed; nothing was left behind.
        """
        try:
            item = make()
        except Exception as error:  # raised again once the other processes know
            decline_save(path, error, self._session)
            raise
        save_now(SaveRequest(path, item, step=step, is_item=True), self._session)

    def decline(self, step: int, path: Path, decision: StepDecision, error: Exception) -> NoReturn:
        """Tell the other processes why this one will not save a step; raise that error."""
        # every process joins the same rounds, even one with nothing to save
        at_end = self._end_of_save(step) if self.saves_at_once(decision) else nullcontext()
        with at_end:
            decline_save(path, error, self._session)
            raise error

    def _end_of_save(self, step: int) -> AbstractContextManager[Round]:
        return self._coordinator.round(f"end of save({step})")

    def saves_at_once(self, decision: StepDecision) -> bool:
        """Return whether a save ends before it returns."""
        return decision.is_ending or not self._options.enable_async_checkpointing

    def _begin_after_pending(self, request: StepRequest) -> None:
        """Wait for the pending save, then start this one."""
        # Invariant: either every process joins the session of a save or at least one declines it;
        # none stays silent. At most one save is pending, so `begin` runs only after the previous
        # one has ended, and may run although that one failed (its error is raised after the new
        # save started). If the wait itself times out, `begin` has not run and this process would
        # never reach the session: it declines, or the other processes would wait for it until their
        # own deadline.
        seconds = request.decision.seconds
        deadline = None if seconds is None else time.monotonic() + seconds

        def begin() -> SaveHandle | None:
            self.times.begun = time.time()
            handle = self._begin(request)
            if handle is not None:
                self._store.begin(request.step, handle)
            return handle

        try:
            self._pending.begin(begin, deadline=deadline)
        except TimeoutError as error:
            if self.times.begun is None:
                decline_save(request.path, error, self._session)
            raise

    def is_running(self) -> bool:
        """Return whether a background save is in progress."""
        return self._pending.is_running()

    @property
    def pending(self) -> SaveHandle | None:
        """The last background save, unless its end has been noted."""
        return self._pending.handle

    def wait(self) -> None:
        """Wait for the pending save without raising its error."""
        self._pending.wait()

    def check(self) -> None:
        """Raise errors of background work without waiting."""
        with self._coordinator.round("check_for_errors()") as current:
            update = current.broadcast(self.pending_update, IndexUpdate)
        self._store.apply_update(update)
        self.raise_failed(has_ended=update.has_ended)

    def raise_failed(self, *, has_ended: bool) -> None:
        """Raise errors of background work.

        Args:
            has_ended: Whether the pending save has ended on the primary; here it is about to.
        """
        if has_ended:
            self._finish_pending(inherited=False)
        self._store.errors.raise_any()

    def finish(self, *, inherited: bool = True) -> None:
        """Wait for all background work; see `CheckpointManager.wait_until_finished`.

        Args:
            inherited: As for `PendingSave.finish`.
        """
        with self._coordinator.round("wait_until_finished()") as current:
            self._pending.wait()
            self._store.wait()
            # the error of the save is more informative than a timeout of the processes that wait
            if not (self._coordinator.is_primary and self._pending.has_failed()):
                current.gather()
            update = current.broadcast(self.pending_update, IndexUpdate)
        self._store.apply_update(update)
        self._finish_pending(inherited=inherited)
        self._store.wait()
        self._store.errors.raise_any()

    def _finish_pending(self, *, inherited: bool) -> None:
        try:
            self._pending.finish(inherited=inherited)
        except BackgroundSaveError as error:
            self._store.errors.attach_to(error)
            raise

    def close(self) -> None:
        """Wait for all background work as `finish` does, and release resources."""
        self.watch.uninstall()
        try:
            self.finish(inherited=False)
        except (ProcessFailedError, ProcessTimeoutError) as error:
            if self.is_running():  # the other processes do not join; this save continues
                _logger.warning("Waiting for a save in progress: %s", error)
            with attach_cleanup_errors(error):
                self._finish_pending(inherited=False)
            raise
        finally:
            self._snapshots.close()
            self._store.close()

    def _begin(self, request: StepRequest) -> SaveHandle | None:
        """Save a step in the background, or at once if requested or after a signal."""
        step, path, metrics = request.step, request.path, request.metrics
        self._store.await_deletion(path)
        item = request.items
        if isinstance(item, Composite):
            item = handled_item(self._handler, {"args": item})
        save = SaveRequest(
            path,
            item,
            overwrite=step in self._store.own.refused,
            custom_metadata=request.custom_metadata,
            step=step,
            details=StepDetails(temporary=True) if request.decision.temporary else None,
            rules=record_rules(self._options.retention(), metrics),
            waited_s=self.times.waited_s,
            is_incremental=self._options.incremental,
            base=self.base.base_of(step) if self._options.incremental else None,
            full_every=self._options.full_every,
            when_done=lambda: self._committed(step, path, metrics),
            record=partial(self._events.committed, step, metrics),
        )
        if self.saves_at_once(request.decision) and request.decision.seconds is None:
            save_now(save, self._session)
            return None
        return begin_save(save, self._session, self._snapshots)

    def _committed(self, step: int, path: Path, metrics: Mapping[str, object] | None) -> None:
        if self._coordinator.is_primary:
            self._store.commit(step, path, metrics)
        if self._async.post_finalization_callback is not None:
            self._async.post_finalization_callback()


def _session_options(options: CheckpointManagerOptions, background: AsyncOptions) -> SessionOptions:
    processes = options.multiprocessing_options or MultiprocessingOptions()
    if options.enable_async_checkpointing:
        processes = processes.in_background(background.timeout_secs)
    atomicity = options.atomicity_options or AtomicityOptions()
    session = SessionOptions(options.file_options, atomicity, processes)
    if options.clock is None:
        return session
    return replace(session, time_ns=lambda: (options.now() - _EPOCH) // _MICROSECOND * 1000)


_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
