"""The example of a training script resumes from any crash; with planted bugs it is caught.

`nox -s soak` tries every point.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import orbit_ckpt as ocp
from orbit_ckpt.testing.chaos import Chaos, Fault, Phase, Result, Run
from tests.soak import SOAK

pytest_plugins = ["orbit_ckpt.testing.chaos"]

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "chaos" / "train.py"

RESTORED_DATA = "data=ocp.args.StatefulRestore(batches)"
NEXT_STEP = "first = latest + 1"
NO_STEP_YET = "w, batches, first = jnp.zeros(4), Batches(), 0\n"
SAVED = "            run.save(step, args=items)\n"

OWN_FILE = (
    NO_STEP_YET,
    NO_STEP_YET
    + """    import json, os
    steps = []
    if os.path.exists("steps.json"):
        with open("steps.json") as file:
            steps = json.load(file)
""",
)
OWN_FILE_WRITTEN = (
    SAVED,
    SAVED
    + """            if step not in steps:
                steps.append(step)
            with open("steps.json", "w") as file:
                json.dump(steps, file)
""",
)

BUGS = {
    "the data is not restored": [(RESTORED_DATA, "")],
    "a step is trained twice": [(NEXT_STEP, "first = latest")],
    "a step is skipped": [(NEXT_STEP, "first = latest + 2")],
    "a file of its own is not replaced atomically": [OWN_FILE, OWN_FILE_WRITTEN],
}


class Training:
    """A version of the example."""

    def __init__(self, chaos: Chaos, script: Path) -> None:
        self.phases: set[str | None] = set()
        self._chaos = chaos
        self._script = script

    def run(self, directory: Path) -> Run:
        return self._chaos.run(self._script, directory=directory)

    def check(self, result: Result) -> None:
        assert result.run.stdout == result.undisturbed.stdout
        steps = ocp.CheckpointManager(result.directory / "run").all_steps()
        assert steps[-2:] == [2, 4]  # an older one stays if the kill comes before its deletion
        self.phases |= {operation.phase for operation in result.undisturbed.operations}


def test_the_example_resumes_from_any_crash(chaos: Chaos) -> None:
    training = Training(chaos, EXAMPLE)
    count = chaos.every_point(training.run, training.check, most=None if SOAK else 8, jobs=2)
    assert count > 100 if SOAK else count == 8
    assert training.phases == {*Phase, None}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(chaos: Chaos, tmp_path: Path, bug: str) -> None:
    code = EXAMPLE.read_text()
    for before, after in BUGS[bug]:
        assert before in code
        code = code.replace(before, after)
    script = tmp_path / "train.py"
    script.write_text(code)
    training = Training(chaos, script)

    def kill(point: int) -> Fault:
        # of a file of its own there are few operations, which a sample of points may miss
        is_own = "own" in bug
        return chaos.kill(1 + point % 4, path="*steps.json") if is_own else chaos.kill(point)

    with pytest.raises(AssertionError) as caught:
        chaos.every_point(training.run, training.check, fault=kill, most=12)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "kill at operation" in text
    assert "run/" in text or "steps.json" in text


@pytest.mark.parametrize("phase", Phase)
def test_a_kill_in_each_phase_has_its_place(chaos: Chaos, tmp_path: Path, phase: Phase) -> None:
    fault = chaos.kill(phase=phase)
    killed = chaos.run(EXAMPLE, directory=tmp_path, faults=[fault])
    assert killed.was_killed
    (operation,) = killed.faults
    assert operation.phase == phase
    steps = ocp.CheckpointManager(tmp_path / "run").all_steps()
    assert steps == ([0, 2, 4] if phase is Phase.RETENTION else [])
    chaos.run(EXAMPLE, directory=tmp_path).check()


def test_a_flipped_bit_is_noticed_by_a_script_that_resumes(chaos: Chaos, tmp_path: Path) -> None:
    chaos.run(EXAMPLE, directory=tmp_path, faults=[chaos.kill(2, phase="snapshot")])
    flipped = chaos.flip_bits(tmp_path / "run" / "0" / "state" / "d")
    resumed = chaos.run(EXAMPLE, directory=tmp_path)
    assert flipped
    assert resumed.status == 1
    assert "CorruptionError" in resumed.stderr


def test_bytes_that_a_disk_loses_are_noticed(chaos: Chaos, tmp_path: Path) -> None:
    lie = chaos.lie(kind="write", path="*/state/d/*")
    chaos.run(EXAMPLE, directory=tmp_path, faults=[lie, chaos.kill(2, phase="snapshot")])
    assert "CorruptionError" in chaos.run(EXAMPLE, directory=tmp_path).stderr
