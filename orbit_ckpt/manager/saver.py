"""Decides about the steps of a run, and saves them one after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from orbit_ckpt.checkpointer.options import AsyncOptions, SessionOptions
from orbit_ckpt.checkpointer.saving import LastSave, SaveHandle, SaveRequest, begin_save, save_now
from orbit_ckpt.errors import BackgroundSaveError, CheckpointExistsError, StepAlreadyExistsError
from orbit_ckpt.items.composite import Composite, CompositeHandler
from orbit_ckpt.manager.index import StepIndex
from orbit_ckpt.manager.keeper import StepKeeper
from orbit_ckpt.manager.options import CheckpointManagerOptions
from orbit_ckpt.manager.preemption import PreemptionWatch
from orbit_ckpt.manager.save_policies import (
    DecisionContext,
    PreemptionCheckpointingPolicy,
    SaveDecision,
    decide,
)
from orbit_ckpt.manager.step_info import StepInfo
from orbit_ckpt.metadata.step_details import StepDetails


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One step to save.

    Attributes:
        step: Its number.
        path: Its directory.
        items: Arguments of its items.
        metrics: Its metrics, None for those among the items.
        custom_metadata: A JSON object to keep with it.
        temporary: Whether it is there only until the next one is durable.
    """

    step: int
    path: Path
    items: Composite
    metrics: Mapping[str, object] | None = None
    custom_metadata: Mapping[str, object] | None = None
    temporary: bool = False


class StepSaver:
    """Saves steps; what becomes durable is listed, and what it makes superfluous deleted."""

    def __init__(
        self,
        handler: CompositeHandler,
        index: StepIndex,
        keeper: StepKeeper,
        session: SessionOptions,
        options: CheckpointManagerOptions,
    ) -> None:
        """Make a saver.

        Args:
            handler: Writes the items.
            index: Where durable steps are listed.
            keeper: What deletes the others.
            session: How a step is written.
            options: When to save, and whether in the background.
        """
        self.watch = PreemptionWatch()
        self._handler = handler
        self._index = index
        self._keeper = keeper
        self._session = session
        self._options = options
        self._async = options.async_options or AsyncOptions()
        self._policy = options.decision_policy()
        self._last = LastSave(self._async.timeout_secs)
        self._started = datetime.now(tz=UTC)
        self.blocked: timedelta | None = None

    def decide(self, step: int) -> SaveDecision:
        """Return whether to save a step, and why."""
        running = self._last.step  # before the others, among which it may be a moment later
        infos = self._index.infos()
        now = datetime.now(tz=UTC)
        if running is not None and running not in {info.step for info in infos}:
            infos = sorted([*infos, StepInfo(running, now)], key=lambda info: info.step)
        if infos and infos[-1].step >= step:
            return SaveDecision()
        if self.watch.received:  # whatever the policies say
            return SaveDecision((PreemptionCheckpointingPolicy(),))
        told = self._options.enable_should_save_is_saving_in_progress_check
        context = DecisionContext(
            is_saving_in_progress=told and self.is_running(),
            reached_preemption=self.watch.reached(step),
            started=self._started,
            blocked=self.blocked,
        )
        return decide(self._policy, StepInfo(step, now), infos, context=context)

    def has(self, step: int) -> bool:
        """Whether a step is listed or being saved."""
        return step == self._last.step or step in self._index.steps()

    def save(self, request: StepRequest) -> None:
        """Begin to save a step once the one before has ended.

        Raises:
            StepAlreadyExistsError: Somebody else has saved it.
            BackgroundSaveError: The save before has failed; this one goes on.
            StorageError: An old step could not be deleted; this save goes on.
            TimeoutError: The process is about to end and a save did not end before that.
            CheckpointError: What handlers raise; nothing was left behind.
        """
        began = time.monotonic()
        try:
            self._last.begin(lambda: self._begin(request), deadline=self.watch.deadline)
        except BackgroundSaveError as error:
            self._tell_of_deletions(error)
            raise
        except CheckpointExistsError as error:
            raise StepAlreadyExistsError(str(error)) from error
        finally:
            self.blocked = timedelta(seconds=time.monotonic() - began)
        self._keeper.check()

    def is_running(self) -> bool:
        """Whether a save goes on in the background."""
        return self._last.is_running()

    def wait(self) -> None:
        """Wait until no save goes on, and tell of nothing."""
        self._last.wait()

    def check(self) -> None:
        """Raise what has failed, without waiting; see `CheckpointManager.check_for_errors`."""
        self._last.check()
        self._keeper.check()

    def finish(self) -> None:
        """Wait for everything; see `CheckpointManager.wait_until_finished`."""
        try:
            self._last.finish()
        except BackgroundSaveError as error:
            self._tell_of_deletions(error)
            raise
        self._keeper.finish()

    def close(self) -> None:
        """As `finish`, and give up resources."""
        self.watch.uninstall()
        try:
            self.finish()
        finally:
            self._keeper.close()

    def _begin(self, request: StepRequest) -> SaveHandle | None:
        """Save a step in the background; at once if that is asked for, or a signal has come."""
        step, path, metrics = request.step, request.path, request.metrics
        save = SaveRequest(
            path,
            {"args": request.items},
            overwrite=step in self._index.refused,
            custom_metadata=request.custom_metadata,
            step=step,
            details=StepDetails(temporary=True) if request.temporary else None,
            when_done=lambda: self._committed(step, path, metrics),
        )
        at_once = self.watch.received or not self._options.enable_async_checkpointing
        if at_once and self.watch.deadline is None:
            save_now(self._handler, save, self._session)
            return None
        return begin_save(self._handler, save, self._session)

    def _committed(self, step: int, path: Path, metrics: Mapping[str, object] | None) -> None:
        """Enter a durable step, then delete what it makes superfluous."""
        try:
            self._index.add(step, path, metrics)
        except OSError as error:
            what = f"Step {step} is saved but not listed: {error}. Call reload()."
            self._keeper.note(what, error)
        self._keeper.apply(just_saved=step)
        if self._async.post_finalization_callback is not None:
            self._async.post_finalization_callback()

    def _tell_of_deletions(self, error: BackgroundSaveError) -> None:
        told = self._keeper.error()
        if told is not None:
            error.add_note(str(told))
