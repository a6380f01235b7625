"""Chaos for training programs: a pytest fixture that proves that a script resumes from any crash.

    pytest_plugins = ["orbit_ckpt.testing.chaos"]  # in the topmost conftest.py

    def test_training_resumes(chaos):
        def train(directory):
            return chaos.run("train.py", "--steps=3", directory=directory)

        def check(result):
            assert result.run.stdout.splitlines()[-1] == result.undisturbed.stdout.splitlines()[-1]

        chaos.every_point(train, check)

The module is not an entry point: pytest would import it in every run of every user of the library.
It has no assertions to rewrite: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

from orbit_ckpt.testing.chaos.faults import fail, fill_disk, kill, lie, stall, tear
from orbit_ckpt.testing.chaos.fixture import Chaos, chaos, chaos_servers
from orbit_ckpt.testing.chaos.points import Result
from orbit_ckpt.testing.chaos.proxy import Proxy
from orbit_ckpt.testing.chaos.scripts import Run, RunningScript
from orbit_ckpt.testing.hook.faults import Action, Fault
from orbit_ckpt.testing.hook.operations import Operation
from orbit_ckpt.testing.hook.phases import Phase

__all__ = [
    "Action",
    "Chaos",
    "Fault",
    "Operation",
    "Phase",
    "Proxy",
    "Result",
    "Run",
    "RunningScript",
    "chaos",
    "chaos_servers",
    "fail",
    "fill_disk",
    "kill",
    "lie",
    "stall",
    "tear",
]
