"""Decides about the steps of a run, and saves them one after the other."""

from __future__ import annotations

import logging
import operator
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from orbit_ckpt._src.checkpointer.last_save import LastSave, told_beside
from orbit_ckpt._src.checkpointer.options import (
    AsyncOptions,
    AtomicityOptions,
    MultiprocessingOptions,
    SessionOptions,
)
from orbit_ckpt._src.checkpointer.saving import (
    SaveHandle,
    SaveRequest,
    begin_save,
    decline_save,
    save_now,
)
from orbit_ckpt._src.errors import (
    BackgroundSaveError,
    CheckpointError,
    CheckpointExistsError,
    ProcessFailedError,
    ProcessTimeoutError,
    StepAlreadyExistsError,
)
from orbit_ckpt._src.items.composite import Composite, CompositeHandler
from orbit_ckpt._src.manager.council import Council, Meeting
from orbit_ckpt._src.manager.index import StepIndex
from orbit_ckpt._src.manager.keeper import StepKeeper
from orbit_ckpt._src.manager.options import CheckpointManagerOptions
from orbit_ckpt._src.manager.preemption import PreemptionWatch
from orbit_ckpt._src.manager.save_policies import (
    DecisionContext,
    PreemptionCheckpointingPolicy,
    SaveDecision,
    decide,
)
from orbit_ckpt._src.manager.shared_index import News, SharedIndex
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.metadata.step_details import StepDetails

_logger = logging.getLogger(__name__)

_step_of: Callable[[StepInfo], int] = operator.attrgetter("step")


class Verdict(Struct, frozen=True):
    """What becomes of a step that a training is at, the same on all processes.

    Attributes:
        save: Whether it is saved.
        temporary: Whether it is there only until the next one is durable.
        exists: Whether it is listed or being saved already.
        is_ending: Whether the job is about to be stopped, by a signal.
        seconds: In how many seconds, None if unknown.
        news: What else there is to know.
    """

    save: bool = False
    temporary: bool = False
    exists: bool = False
    is_ending: bool = False
    seconds: float | None = None
    news: News = News()


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One step to save.

    Attributes:
        step: Its number.
        path: Its directory.
        items: Arguments of its items.
        verdict: How it is saved.
        metrics: Its metrics, None for those among the items.
        custom_metadata: A JSON object to keep with it.
    """

    step: int
    path: Path
    items: Composite
    verdict: Verdict
    metrics: Mapping[str, object] | None = None
    custom_metadata: Mapping[str, object] | None = None


class StepSaver:
    """Saves steps; what becomes durable is listed, and what it makes superfluous deleted."""

    def __init__(
        self,
        council: Council,
        handler: CompositeHandler,
        index: StepIndex,
        shared: SharedIndex,
        keeper: StepKeeper,
        options: CheckpointManagerOptions,
    ) -> None:
        """Make a saver.

        Args:
            council: The processes of the run.
            handler: Writes the items.
            index: Where durable steps are listed.
            shared: The same, as all processes know it.
            keeper: What deletes the others.
            options: When to save, and how.
        """
        self.watch = PreemptionWatch()
        self._council = council
        self._handler = handler
        self._index = index
        self._shared = shared
        self._keeper = keeper
        self._options = options
        self._async = options.async_options or AsyncOptions()
        self._session = _session_options(options, self._async)
        self._policy = options.decision_policy()
        self._last = LastSave(self._async.timeout_secs)
        self._started = datetime.now(tz=UTC)
        self._problems: list[CheckpointError] = []
        self.blocked: timedelta | None = None

    def decide(self, step: int, call: str, *, force: bool = False) -> Verdict:
        """Return what becomes of a step.

        Args:
            step: Its number.
            call: What the manager has been asked, the same on all processes.
            force: Whether to save it whatever the policies say.

        Raises:
            CheckpointError: The manager is closed.
        """
        self._council.check_open(call)
        says = self._tell_of_ending(step)
        verdict = self._council.ask(call, lambda: self._decide(step, says, force=force), Verdict)
        self.take(verdict.news)
        return verdict

    def reached_preemption(self, step: int, call: str) -> bool:
        """Return whether the job is about to be stopped; see `decide` for the arguments."""
        says = self._tell_of_ending(step)
        return self._council.ask(call, lambda: says or bool(self._endings()), bool)

    def _tell_of_ending(self, step: int) -> bool:
        """Let the primary process know of a signal; return what JAX's service says."""
        if self.watch.received and not self._council.is_primary:
            self._council.say_ending(self.watch.seconds_left)
        return self.watch.service_says(step)

    def _endings(self) -> list[float | None]:
        """Return in how many seconds processes will be stopped that have got a signal."""
        mine = [self.watch.seconds_left] if self.watch.received else []
        return [*self._council.endings(), *mine]

    def _decide(self, step: int, service_says: bool, *, force: bool) -> Verdict:
        """Decide for all processes."""
        endings = self._endings()
        known = [seconds for seconds in endings if seconds is not None]
        decision = self._ask_policies(step, service_says, is_ending=bool(endings))
        return Verdict(
            save=not self._options.read_only and (force or bool(decision)),
            temporary=decision.temporary and not force,
            exists=self._has(step),
            is_ending=bool(endings),
            seconds=min(known, default=None),
            news=self.news(),
        )

    def _ask_policies(self, step: int, service_says: bool, *, is_ending: bool) -> SaveDecision:
        running = self._last.step  # before the others, among which it may be a moment later
        infos = self._index.infos()
        now = datetime.now(tz=UTC)
        if step == 0:
            self._started = now  # what was before, a compilation for example, is not training
        if running is not None:
            place = bisect_left(infos, running, key=_step_of)
            if place == len(infos) or infos[place].step != running:
                infos.insert(place, StepInfo(running, now))
        if infos and infos[-1].step >= step:
            return SaveDecision()
        if is_ending:  # whatever the policies say
            return SaveDecision((PreemptionCheckpointingPolicy(),))
        told = self._options.enable_should_save_is_saving_in_progress_check
        context = DecisionContext(
            is_saving_in_progress=told and self.is_running(),
            reached_preemption=service_says,
            started=self._started,
            blocked=self.blocked,
        )
        return decide(self._policy, StepInfo(step, now), infos, context=context)

    def _has(self, step: int) -> bool:
        return step == self._last.step or step in self._index

    def news(self) -> News:
        """Return what this process has to tell the others, if it is the primary one."""
        has_ended = not self._last.is_running()  # before the steps, of which it may be one
        return self._shared.news(self._keeper, has_ended=has_ended)

    def take(self, news: News) -> None:
        """Take in what the primary process has told, to be raised later if it is a problem."""
        self._shared.follow(news)
        problem = news.error()
        if problem is not None:
            self._problems.append(problem)

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
            if self._saves_at_once(request.verdict):
                with self._end_of_save(request.step) as meeting:
                    self._begin_after_last(request)
                    meeting.collect()
                    news = meeting.share(self.news, News)
                self.take(news)
            else:
                self._begin_after_last(request)
        except BackgroundSaveError as error:
            self._tell_of_problems(error)
            raise
        except CheckpointExistsError as error:
            raise StepAlreadyExistsError(str(error)) from error
        finally:
            self.blocked = timedelta(seconds=time.monotonic() - began)
        self.check_problems()

    def decline(self, step: int, path: Path, verdict: Verdict, error: Exception) -> NoReturn:
        """Let the others know that this process will not save a step, and why; raise that."""
        # all come to the same meetings, also who has nothing to save
        at_end = self._end_of_save(step) if self._saves_at_once(verdict) else nullcontext()
        with at_end:
            decline_save(path, error, self._session)
            raise error

    def _end_of_save(self, step: int) -> AbstractContextManager[Meeting]:
        return self._council.meeting(f"end of save({step})")

    def _saves_at_once(self, verdict: Verdict) -> bool:
        return verdict.is_ending or not self._options.enable_async_checkpointing

    def _begin_after_last(self, request: StepRequest) -> None:
        seconds = request.verdict.seconds
        deadline = None if seconds is None else time.monotonic() + seconds
        has_begun = False

        def begin() -> SaveHandle | None:
            nonlocal has_begun
            has_begun = True
            return self._begin(request)

        try:
            self._last.begin(begin, deadline=deadline)
        except TimeoutError as error:
            if not has_begun:  # the others begin, and would wait for this process
                decline_save(request.path, error, self._session)
            raise

    def is_running(self) -> bool:
        """Whether a save goes on in the background."""
        return self._last.is_running()

    def wait(self) -> None:
        """Wait until no save goes on in this process, and tell of nothing."""
        self._last.wait()

    def check(self) -> None:
        """Raise what has failed, without waiting; see `CheckpointManager.check_for_errors`."""
        with self._council.meeting("check_for_errors()") as meeting:
            news = meeting.share(self.news, News)
        self.take(news)
        self.raise_failed(has_ended=news.has_ended)

    def raise_failed(self, *, has_ended: bool) -> None:
        """Raise what has failed.

        Args:
            has_ended: Whether the last save has ended on the primary process; it is about to here.
        """
        if self._council.is_alone:
            self._last.check()
        elif has_ended:
            self._finish_last(inherited=False)
        self.check_problems()

    def finish(self, *, inherited: bool = True) -> None:
        """Wait for everything; see `CheckpointManager.wait_until_finished`.

        Args:
            inherited: As for `LastSave.finish`.
        """
        with self._council.meeting("wait_until_finished()") as meeting:
            if not self._council.is_alone:
                self._last.wait()
                self._keeper.wait()
                # what the last save has failed with says more than who does not come here
                if not (self._council.is_primary and self._last.has_failed()):
                    meeting.collect()
            news = meeting.share(self.news, News)
        self.take(news)
        self._finish_last(inherited=inherited)
        self._keeper.wait()
        self.check_problems()

    def _finish_last(self, *, inherited: bool) -> None:
        try:
            self._last.finish(inherited=inherited)
        except BackgroundSaveError as error:
            self._tell_of_problems(error)
            raise

    def _problem(self) -> CheckpointError | None:
        """Return what the primary process could not delete, to the first who asks."""
        if self._council.is_alone:
            return self._keeper.error()
        problems, self._problems = self._problems, []
        for other in problems[1:]:
            problems[0].add_note(f"Also: {other}")
        return problems[0] if problems else None

    def check_problems(self) -> None:
        """Raise what the primary process could not delete."""
        problem = self._problem()
        if problem is not None:
            raise problem

    def close(self) -> None:
        """As `finish`, and give up resources."""
        self.watch.uninstall()
        try:
            self.finish(inherited=False)
        except (ProcessFailedError, ProcessTimeoutError) as error:
            if self.is_running():  # the others do not come; what goes on here goes on
                _logger.warning("A save goes on, which is waited for: %s", error)
            with told_beside(error):
                self._finish_last(inherited=False)
            raise
        finally:
            self._keeper.close()

    def _begin(self, request: StepRequest) -> SaveHandle | None:
        """Save a step in the background; at once if that is asked for, or a signal has come."""
        step, path, metrics = request.step, request.path, request.metrics
        self._keeper.make_way(path)
        save = SaveRequest(
            path,
            {"args": request.items},
            overwrite=step in self._index.refused,
            custom_metadata=request.custom_metadata,
            step=step,
            details=StepDetails(temporary=True) if request.verdict.temporary else None,
            when_done=lambda: self._committed(step, path, metrics),
        )
        if self._saves_at_once(request.verdict) and request.verdict.seconds is None:
            save_now(self._handler, save, self._session)
            return None
        return begin_save(self._handler, save, self._session)

    def _committed(self, step: int, path: Path, metrics: Mapping[str, object] | None) -> None:
        """Enter a durable step, then delete what it makes superfluous."""
        if self._council.is_primary:
            try:
                self._index.add(step, path, metrics)
            except OSError as error:
                what = f"Step {step} is saved but not listed: {error}. Call reload()."
                self._keeper.note(what, error)
            self._keeper.apply(just_saved=step)
        if self._async.post_finalization_callback is not None:
            self._async.post_finalization_callback()

    def _tell_of_problems(self, error: BackgroundSaveError) -> None:
        problem = self._problem()
        if problem is not None:
            error.add_note(str(problem))


def _session_options(options: CheckpointManagerOptions, background: AsyncOptions) -> SessionOptions:
    processes = options.multiprocessing_options or MultiprocessingOptions()
    if options.enable_async_checkpointing:
        processes = processes.in_background(background.timeout_secs)
    atomicity = options.atomicity_options or AtomicityOptions()
    return SessionOptions(options.file_options, atomicity, processes)
