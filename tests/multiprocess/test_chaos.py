"""A training script of two processes, of which one is late or is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit_ckpt.testing.chaos import Chaos, Fault, Result, Run
from tests.cells import cells
from tests.support import free_port

pytest_plugins = ["orbit_ckpt.testing.chaos"]

pytestmark = pytest.mark.slow

SCRIPT = """
import os
import sys
import jax
import numpy as np
import orbit_ckpt as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

port, index = map(int, sys.argv[1:])
jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
sharding = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))

def state(step):
    values = np.arange(8.0) + step
    return {"w": jax.make_array_from_callback((8,), sharding, values.__getitem__)}

options = ocp.CheckpointManagerOptions(
    max_to_keep=1, multiprocessing_options=ocp.MultiprocessingOptions(timeout_secs=60)
)
with ocp.CheckpointManager(os.path.abspath("run"), options=options) as run:
    latest = run.latest_step()
    if latest is not None:
        restored = run.restore(latest, args=ocp.args.StandardRestore(state(0)))
        np.testing.assert_array_equal(
            restored["w"].addressable_data(0), state(latest)["w"].addressable_data(0)
        )
    for step in range(0 if latest is None else latest + 1, 2):
        run.save(step, state(step))
    run.wait_until_finished()
    print("saved", *run.all_steps())
jax.distributed.shutdown()
"""


class Training:
    """The script, in two processes."""

    def __init__(self, chaos: Chaos, script: Path) -> None:
        self._chaos = chaos
        self._script = script
        script.write_text(SCRIPT)
        chaos.environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

    def run(self, directory: Path, *late: Fault) -> list[Run]:
        port = free_port()
        processes = [
            self._chaos.start(
                self._script, port, index, directory=directory, faults=late if index else ()
            )
            for index in range(2)
        ]
        return self._chaos.wait_for_all(*processes)


@pytest.mark.parametrize("process", cells([0, 1], bool))
def test_a_run_of_two_resumes_after_one_was_killed(
    chaos: Chaos, tmp_path: Path, process: int
) -> None:
    training = Training(chaos, tmp_path / "train.py")

    def check(result: Result) -> None:
        (printed,) = {run.stdout for run in result.runs[-1]}
        # the next save makes up for a removal that did not begin
        is_removing = result.point is not None and result.point.phase == "retention"
        assert printed == "saved 1\n" or (is_removing and printed == "saved 0 1\n")

    assert chaos.every_point(training.run, check, most=3, process=process) == 3


def test_a_run_of_two_waits_for_one_that_is_late(chaos: Chaos, tmp_path: Path) -> None:
    training = Training(chaos, tmp_path / "train.py")
    runs = training.run(tmp_path, chaos.stall(phase="write", seconds=0.2))
    assert [run.check().stdout for run in runs] == ["saved 1\n"] * 2
    assert [operation.phase for operation in runs[1].faults] == ["write"]
