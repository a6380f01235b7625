"""Two processes of one program save and load with the v1 API."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt
from tests.programs import Program
from tests.support import free_port
from tests.v1 import worker


def run(scenario: str, directory: Path) -> None:
    """Run a scenario of `worker.py` in two processes with two devices each."""
    port = free_port()
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    programs = [
        Program(worker.main, index, 2, port, scenario, str(directory), environment=environment)
        for index in range(2)
    ]
    ended = [program.wait() for program in programs]
    said = "\n".join(process.stderr for process in ended)
    for process in ended:
        assert process.returncode == 0, said
        assert process.stdout.endswith("done\n"), said  # after what Gloo says


@pytest.mark.slow
def test_two_processes_save_and_load_states(tmp_path: Path) -> None:
    run("states", tmp_path)
    for name, step in (("state", 2), ("items", 3), ("parts", 4)):
        found = orbit_ckpt.v1.load(tmp_path / name)
        np.testing.assert_array_equal(found["w"], worker.host_values(step))
        assert orbit_ckpt.verify(tmp_path / name).is_intact
    written = (tmp_path / "state" / "state").glob("ocdbt.process_*")
    assert len(list(written)) == 2


@pytest.mark.slow
def test_two_processes_save_and_load_the_steps_of_a_run(tmp_path: Path) -> None:
    run("run", tmp_path)
    with orbit_ckpt.v1.training.Checkpointer(tmp_path / "run") as opened:
        assert [step.step for step in opened.checkpoints] == [6]
        np.testing.assert_array_equal(opened.load()["w"], worker.host_values(7))
