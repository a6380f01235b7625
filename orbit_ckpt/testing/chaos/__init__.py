"""Chaos for training programs: a pytest fixture that proves that a script resumes from any crash.

    pytest_plugins = ["orbit_ckpt.testing.chaos"]  # in conftest.py

    def test_training_resumes(chaos):
        def train(directory):
            return chaos.run("train.py", "--steps=3", directory=directory)

        def check(result):
            assert result.run.stdout.endswith(result.undisturbed.stdout[-20:])

        chaos.every_point(train, check)
"""

from __future__ import annotations

from orbit_ckpt.testing.chaos.fixture import Chaos, _chaos_servers, chaos
from orbit_ckpt.testing.chaos.points import Result
from orbit_ckpt.testing.chaos.scripts import Run, RunningScript
from orbit_ckpt.testing.hook.faults import Action, Fault, Phase
from orbit_ckpt.testing.hook.operations import Operation

__all__ = [
    "Action",
    "Chaos",
    "Fault",
    "Operation",
    "Phase",
    "Result",
    "Run",
    "RunningScript",
    "chaos",
]
