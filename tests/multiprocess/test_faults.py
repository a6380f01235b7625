"""A run of two processes, of which one is killed, stopped or raises, at each phase of a save.

The other one gets an error that names it, nobody hangs, and the next life of the run goes on from
the last step that was durable. `nox -s soak` does it 50 times at random.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from tests.cells import cells
from tests.multiprocess.run_worker import COUNT, OF_OTHERS, OF_PRIMARY, PHASES, values_of
from tests.multiprocess.support import Life
from tests.soak import rounds

pytestmark = pytest.mark.slow

ROUNDS = rounds(1, 50)
"""How many random faults."""

DEADLINE_S, HEARTBEAT_S, ENDED_S = 3.0, 5, 90.0

OF_FIRST = [phase for phase in PHASES if phase not in OF_OTHERS]
OF_SECOND = [phase for phase in PHASES if phase not in OF_PRIMARY]

DURABLE = {"waiting for 'committed'", "after the commit", "in a deletion"}
"""A process that is lost in these phases does not keep the step from being saved."""


class Run:
    """A run with many lives."""

    def __init__(
        self, root: str, logs: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.root = root
        self.logs = logs
        self.environment = dict(environment or {})
        self.durable = 0

    def begin(self, faults: list[Any], *, background: bool, struck: int | None = None) -> Life:
        """Begin a life.

        Args:
            faults: What happens in it: phases, actions and victims.
            background: Whether it saves in the background.
            struck: The process that a signal from outside will hit; it then runs until that.
        """
        # Where the first process is lost, JAX itself has to end the others. Otherwise its heartbeat
        # must not be what ends them: it could come before what this library says, on a slow machine
        loses_first = 0 in (struck, *(victim for _, _, victim in faults))
        plan = {
            "root": self.root,
            "environment": self.environment,
            "background": background,
            "timeout_s": DEADLINE_S,
            "heartbeat_s": HEARTBEAT_S if loses_first else 100,
            "faults": faults,
            "endless": struck is not None,
        }
        return Life(COUNT, plan, self.logs)

    def check(self, life: Life) -> None:
        """Check that the life began where the last one ended, and left nothing half behind."""
        listed = life.told("listed")
        assert listed[0] == listed[1], self.text(life)
        assert max(listed[0][0], default=0) >= self.durable, self.text(life)
        self.durable = max([self.durable, *life.told("durable")[0], *life.told("durable")[1]])
        options = ocp.CheckpointManagerOptions(read_only=True)
        with ocp.CheckpointManager(self.root, options=options) as manager:
            steps = manager.all_steps()
            assert steps[-1] >= self.durable, self.text(life)
            for step in steps:
                restored = manager.restore(step)
                np.testing.assert_array_equal(restored["w"], values_of(step))
                assert restored["step"] == step

    def text(self, life: Life) -> str:
        reports = [f"process {i}: {r}" for i, told in enumerate(life.reports) for r in told]
        return "\n".join([*reports, *(log.read_text()[-3000:] for log in life.logs)])

    def go_on(self) -> None:
        """Check that another life ends well."""
        life = self.begin([], background=True)
        assert life.end(ENDED_S) == [0, 0], self.text(life)
        self.check(life)


def is_one(phases: list[str]) -> bool:
    """Return whether a test is of one phase only, as in a usual run."""
    return len(phases) == 1


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(str(tmp_path / "run"), tmp_path)


def raised_after(life: Life, index: int) -> dict[str, list[dict[str, Any]]]:
    """Return what a process has raised, by the fault that it met with last."""
    found: dict[str, list[dict[str, Any]]] = {}
    now = ""
    for report in life.reports[index]:
        if "phase" in report:
            now = f"{report['phase']} {report['victim']}"
            found[now] = []
        elif "raised" in report:
            found[now].append(report)
    return found


@pytest.mark.parametrize("background", cells([False, True], bool))
def test_what_one_process_raises_is_raised_on_all(run: Run, background: bool) -> None:
    faults = [[phase, "raise", 0] for phase in OF_FIRST]
    faults += [[phase, "raise", 1] for phase in OF_SECOND]
    life = run.begin(faults, background=background)
    assert life.end(ENDED_S) == [0, 0], run.text(life)
    for phase, _, victim in faults:
        own, others = (raised_after(life, i)[f"{phase} {victim}"] for i in (victim, 1 - victim))
        if phase == "after the commit":  # whatever a callback raises is logged
            assert not own + others
            continue
        assert "the disk is on fire" in own[0]["text"], own
        if background and not others:  # raised by a later call
            found = raised_after(life, 1 - victim)
            others = [one for some in found.values() for one in some if one["named"] == [victim]]
        assert others, (phase, run.text(life))
        assert phase == "in a deletion" or others[0]["named"] == [victim], others
        # one that leaves the run while another one begins a save is missed at its end, which in the
        # background is an error of that save
        is_missed = {"ProcessTimeoutError", "BackgroundSaveError"} & {others[0]["raised"]}
        is_late = phase == "before the decision" and is_missed
        assert is_late or "the disk is on fire" in others[0]["text"], others
    run.check(life)
    run.go_on()


@pytest.mark.parametrize("background", cells([False, True], bool))
def test_a_stopped_process_is_named_and_told_when_it_comes_back(run: Run, background: bool) -> None:
    phases = OF_SECOND[int(background) :: 2]
    life = run.begin([[phase, "stop", 1] for phase in phases], background=background)
    assert life.end(ENDED_S) == [0, 0], run.text(life)
    for index in range(COUNT):
        found = raised_after(life, index)
        for phase in phases:
            assert found[f"{phase} 1"], (phase, run.text(life))
            assert found[f"{phase} 1"][0]["named"] == [1], (phase, run.text(life))
    run.check(life)
    run.go_on()


@pytest.mark.parametrize("phases", cells([OF_SECOND, ["writing"]], is_one), ids=len)
def test_a_killed_process_is_named_and_the_run_goes_on(run: Run, phases: list[str]) -> None:
    for number, phase in enumerate(phases):
        life = run.begin([[phase, "kill", 1]], background=number % 2 == 1)
        assert life.wait_for(0, ENDED_S) == 0, (phase, run.text(life))
        raised = raised_after(life, 0)[f"{phase} 1"]
        assert raised, (phase, run.text(life))
        assert raised[0]["named"] == [1], (phase, run.text(life))
        run.check(life)
        before = max(life.told("listed")[0][0], default=0)
        saved = ocp.CheckpointManager(run.root).latest_step()
        assert saved == before + (2 if phase in DURABLE else 1), phase
    run.go_on()


@pytest.mark.parametrize("phases", cells([OF_FIRST, ["committing"]], is_one), ids=len)
def test_all_end_with_the_first_process_and_the_run_goes_on(run: Run, phases: list[str]) -> None:
    for number, phase in enumerate(phases):
        life = run.begin([[phase, "kill", 0]], background=number % 2 == 1)
        check_ended_by_jax(run, life)
        run.check(life)
    life = run.begin([["writing", "stop", 0]], background=True)
    check_ended_by_jax(run, life)
    run.check(life)
    run.go_on()


def check_ended_by_jax(run: Run, life: Life) -> None:
    """Check that the second process was ended by JAX, unless it has named the first one before."""
    status = life.wait_for(1, ENDED_S)
    assert status is not None, run.text(life)
    if status == 0:
        named = [report["named"] for report in life.reports[1] if "raised" in report]
        assert named[:1] == [[0]], run.text(life)
    else:
        assert "JAX distributed service detected fatal errors" in life.logs[1].read_text()


def test_random_faults(run: Run) -> None:
    rng_seed = int(os.environ.get("ORBIT_CKPT_FAULT_SEED", time.time_ns() % 10**9))
    print(f"ORBIT_CKPT_FAULT_SEED={rng_seed}")
    rng = random.Random(rng_seed)  # noqa: S311 - not cryptography
    for number in range(ROUNDS):
        victim = rng.randrange(COUNT)
        action = rng.choice(["kill", "kill", "stop"])
        background = rng.random() < 0.5
        if rng.random() < 0.5:
            phase = rng.choice(OF_SECOND if victim else OF_FIRST)
            life = run.begin([[phase, action, victim]], background=background)
        else:
            phase = "at any moment"
            life = strike(run, rng, action, victim, background=background)
        what = f"round {number}: {action} {victim}, {phase}, background={background}"
        status = life.wait_for(1 - victim, ENDED_S)
        print(f"{what}: the other ended with {status}; durable: {run.durable}", flush=True)
        assert status is not None, (what, run.text(life))
        if victim:  # else JAX may end it before it can say anything
            named = [report["named"] for report in life.reports[0] if "raised" in report]
            assert status == 0, (what, run.text(life))
            assert named[0] == [1], (what, run.text(life))
        run.check(life)
    run.go_on()


def strike(run: Run, rng: random.Random, action: str, victim: int, *, background: bool) -> Life:
    """Let something happen to a process at a random moment."""
    life = run.begin([], background=background, struck=victim)
    assert life.listen("durable", ENDED_S), run.text(life)
    life.listen("nothing", rng.uniform(0, 0.5))
    life.signal(victim, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
    return life
