"""A manager against a model of a few lines: whatever is called in whatever order, both agree.

`nox -s soak` looks for new counterexamples.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.atomic import AtomicDirectory
from orbit_ckpt.errors import (
    BackgroundSaveError,
    StepAlreadyExistsError,
    StepNotFoundError,
    StorageError,
)
from orbit_ckpt.policies import AnySavePolicy, FixedIntervalPolicy, TemporaryPolicy


@dataclass(frozen=True)
class Setting:
    """When a run saves, what it keeps, and how."""

    every: int
    temporarily_every: int
    max_to_keep: int | None
    keep_period: int | None
    best: Literal["max", "min"] | None
    keep_latest: bool
    keep_unmeasured: bool
    background: bool
    background_delete: bool
    in_place: bool

    def options(self) -> ocp.CheckpointManagerOptions:
        mode = ocp.AtomicityMode.COMMIT_FILE if self.in_place else ocp.AtomicityMode.AUTO
        options = ocp.CheckpointManagerOptions(
            save_decision_policy=AnySavePolicy(
                [
                    TemporaryPolicy(FixedIntervalPolicy(self.temporarily_every)),
                    FixedIntervalPolicy(self.every),
                ]
            ),
            max_to_keep=self.max_to_keep,
            keep_period=self.keep_period,
            best_fn=operator.itemgetter("metric") if self.best else None,
            best_mode=self.best or "max",
            keep_checkpoints_without_metrics=self.keep_unmeasured,
            enable_async_checkpointing=self.background,
            enable_background_delete=self.background_delete,
            atomicity_options=ocp.AtomicityOptions(mode=mode),
        )
        options.keep_latest = self.keep_latest  # set later, it does not warn
        return options


seldom = st.integers(0, 3).map(lambda number: number == 0)

settings_of_runs = st.builds(
    Setting,
    every=st.sampled_from([2, 3, 4]),
    temporarily_every=st.sampled_from([1, 1, 2]),
    max_to_keep=st.none() | st.integers(0, 3),
    keep_period=st.none() | st.integers(1, 4),
    best=st.sampled_from([None, "max", "min"]),
    keep_latest=st.booleans(),
    keep_unmeasured=st.booleans(),
    background=st.booleans(),
    background_delete=st.booleans(),
    in_place=st.booleans(),
)


@dataclass(frozen=True)
class Saved:
    """A step as the model knows it; its number is that of the call that saved it."""

    number: int
    metric: float | None
    temporary: bool
    pinned: bool = False

    def tree(self) -> dict[str, Any]:
        return {"w": np.full(3, self.number), "number": self.number}


@dataclass
class Model:
    """The durable steps of a run."""

    setting: Setting
    steps: dict[int, Saved] = field(default_factory=dict)

    def kept(self) -> list[int]:
        steps, setting = self.steps, self.setting
        permanent = [step for step in sorted(steps) if not steps[step].temporary]
        kept = {step for step in steps if steps[step].pinned}
        kept |= {
            step for step in permanent if setting.keep_period and not step % setting.keep_period
        }
        if setting.max_to_keep is None or len(permanent) <= setting.max_to_keep:
            kept.update(permanent)
        elif setting.max_to_keep and setting.best is None:
            kept.update(permanent[-setting.max_to_keep :])
        elif setting.max_to_keep:
            kept.update(self._ranked(permanent)[-setting.max_to_keep :])
            kept |= {s for s in permanent if setting.keep_unmeasured and steps[s].metric is None}
        newest = max(steps, default=None)
        if newest is not None and (setting.keep_latest or steps[newest].temporary):
            kept.add(newest)
        return sorted(kept)

    def best(self) -> int | None:
        if self.setting.best is None:
            return max(self.steps, default=None)
        return next(reversed(self._ranked(self.steps)), None)

    def _ranked(self, steps: Any) -> list[int]:
        sign = -1 if self.setting.best == "min" else 1
        measured = {s: self.steps[s].metric for s in steps}
        found = [(sign * metric, step) for step, metric in measured.items() if metric is not None]
        return [step for _, step in sorted(found)]

    def add(self, step: int, saved: Saved) -> None:
        self.steps[step] = saved
        kept = {*self.kept(), *([step] if self.setting.keep_latest else [])}
        self.steps = {step: saved for step, saved in self.steps.items() if step in kept}


@dataclass(frozen=True)
class Running:
    """A save that is held right before its commit."""

    step: int
    saved: Saved
    fails: bool


class Commits:
    """Holds commits, and lets some of them fail."""

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.held: dict[int, threading.Event] = {}
        self._commit = AtomicDirectory.commit

    def patched(self) -> contextlib.AbstractContextManager[object]:
        """Take the place of `AtomicDirectory.commit`."""

        def commit(directory: AtomicDirectory) -> None:
            self.before_commit(int(directory.final.name))
            self._commit(directory)

        return mock.patch.object(AtomicDirectory, "commit", commit)

    def before_commit(self, step: int) -> None:
        if step in self.held:
            assert self.held[step].wait(60)
        if step in self.failing:
            raise OSError(28, "No space left on device")


class ManagerMachine(RuleBasedStateMachine):
    """Calls a manager and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()
        self.running: Running | None = None
        self.untold: int | None = None
        self.commits = Commits()
        self.root = Path(tempfile.mkdtemp()) / "run"
        self.stack = ExitStack()
        self.stack.callback(shutil.rmtree, self.root.parent)
        self.stack.enter_context(self.commits.patched())
        self.stack.enter_context(mock.patch.object(os, "fsync"))  # no test of the disk

    @initialize(setting=settings_of_runs)
    def open(self, setting: Setting) -> None:
        self.setting = setting
        self.model = Model(setting)
        self.manager = ocp.CheckpointManager(self.root, options=setting.options())

    def teardown(self) -> None:
        with self.stack:
            if hasattr(self, "manager"):
                self.reopen()
                self.manager.close()

    def settle(self) -> None:
        """Let the save that is held end; the model learns how it ended."""
        running, self.running = self.running, None
        if running is not None:
            self.commits.held.pop(running.step).set()
            self.manager._writer._pending.wait()
            self.learn(running)

    def learn(self, running: Running) -> None:
        self.commits.failing.discard(running.step)
        if running.fails:
            self.untold = running.step
        else:
            self.model.add(running.step, running.saved)
        self.manager._store.wait()

    def call(self, method: Callable[[], object]) -> object:
        """Call what tells of a failed save, and check that it does, once."""
        untold, self.untold = self.untold, None
        if untold is None:
            return method()
        with pytest.raises(BackgroundSaveError, match=f"step {untold} ") as caught:
            method()
        assert caught.value.step == untold
        return None

    def known(self) -> set[int]:
        return {*self.model.steps, *([self.running.step] if self.running else [])}

    def decision(self, step: int) -> Literal["permanent", "temporary"] | None:
        if step <= max(self.known(), default=-1):
            return None
        if self.setting.every and step % self.setting.every == 0:
            return "permanent"
        often = self.setting.temporarily_every
        return "temporary" if often and step % often == 0 else None

    @rule(
        ahead=st.integers(-3, 4),
        metric=st.none() | st.sampled_from([-1.0, 0.0, 1.0, 2.0]),
        force=seldom,
        fails=seldom,
        held=st.booleans(),
    )
    def save(
        self, *, ahead: int, metric: float | None, force: bool, fails: bool, held: bool
    ) -> None:
        step = max(0, max(self.known(), default=0) + ahead)
        decision = self.decision(step)
        saved = Saved(next(self.numbers), metric, decision == "temporary" and not force)
        metrics = None if metric is None else {"metric": metric}

        def save() -> bool:
            return self.manager.save(step, saved.tree(), metrics=metrics, force=force)

        if decision is None and not force:
            assert not self.call(save)
        elif step in self.known():
            with pytest.raises(StepAlreadyExistsError, match=f"Step {step} "):
                save()
        else:
            self.settle()
            self.begin(Running(step, saved, fails), save, held=held)

    def begin(self, running: Running, save: Callable[[], bool], *, held: bool) -> None:
        if running.fails:
            self.commits.failing.add(running.step)
        if not self.setting.background:
            if running.fails:
                with pytest.raises(StorageError, match=f"/{running.step}: saving failed.*No space"):
                    save()
                self.commits.failing.discard(running.step)
            else:
                assert save()
                self.learn(running)
            return
        self.commits.held[running.step] = threading.Event()
        assert self.call(save) in (True, None)
        self.running = running
        if not held:
            self.settle()

    @rule()
    def check_for_errors(self) -> None:
        self.call(self.manager.check_for_errors)

    @rule()
    def wait(self) -> None:
        self.settle()
        self.call(self.manager.wait_until_finished)

    @rule()
    def reopen(self) -> None:
        self.settle()
        self.call(self.manager.close)
        assert sorted(os.listdir(self.root)) == sorted(map(str, self.model.steps))
        self.manager = ocp.CheckpointManager(self.root, options=self.setting.options())

    @precondition(lambda self: self.model.steps)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.settle()
        if not self.model.steps:  # the step that was held has made all others superfluous
            with pytest.raises(StepNotFoundError):
                self.manager.restore()
            return
        step = data.draw(st.sampled_from(sorted(self.model.steps)))
        saved = self.model.steps[step]
        restored = self.manager.restore(step)
        np.testing.assert_array_equal(restored["w"], saved.tree()["w"])
        assert restored["number"] == saved.number
        assert self.manager.metrics(step) == (
            None if saved.metric is None else {"metric": saved.metric}
        )

    @precondition(lambda self: self.model.steps)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.model.steps)))
        self.manager.delete(step)
        self.manager._store.wait()
        del self.model.steps[step]

    @precondition(lambda self: self.model.steps)
    @rule(data=st.data(), pinned=st.booleans())
    def pin(self, data: st.DataObject, *, pinned: bool) -> None:
        step = data.draw(st.sampled_from(sorted(self.model.steps)))
        (self.manager.pin if pinned else self.manager.unpin)(step)
        self.model.steps[step] = replace(self.model.steps[step], pinned=pinned)

    @rule(ahead=st.integers(0, 2))
    def miss(self, ahead: int) -> None:
        step = max(self.model.steps, default=0) + 1 + ahead
        for method in (self.manager.delete, self.manager.pin, self.manager.unpin):
            with pytest.raises(StepNotFoundError, match=f"no step {step} "):
                method(step)

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "manager"):
            return
        running = set() if self.running is None else {self.running.step}
        newest = max({*self.model.steps, *running}, default=None)
        assert self.manager.all_steps() == sorted({*self.model.steps, *running})
        assert self.manager.latest_step() == newest
        best = newest if self.setting.best is None else self.model.best()
        assert self.manager.best_step() == best
        assert self.manager.retention().kept == self.model.kept()
        assert self.manager.is_saving_in_progress() == (self.running is not None)
        near = max(self.known(), default=0)
        for step in range(max(0, near - 1), near + 4):
            assert self.manager.should_save(step) == (self.decision(step) is not None)


@pytest.mark.slow
def test_a_manager_and_its_model_agree() -> None:
    run_state_machine_as_test(ManagerMachine, settings=settings())
