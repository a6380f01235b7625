"""Proves that `train.py` resumes from a crash at any moment. Run with `pytest examples/chaos`."""

from __future__ import annotations

from pathlib import Path

from orbit_ckpt.testing.chaos import Chaos, Result, Run

pytest_plugins = ["orbit_ckpt.testing.chaos"]

SCRIPT = Path(__file__).with_name("train.py")


def test_training_resumes_from_any_crash(chaos: Chaos) -> None:
    """Kill the training before storage operations, one at a time, and start it again."""

    def train(directory: Path) -> Run:
        return chaos.run(SCRIPT, directory=directory)

    def check(result: Result) -> None:
        assert result.run.stdout == result.undisturbed.stdout

    assert chaos.every_point(train, check, most=12, jobs=2) == 12


def test_training_stops_on_a_full_disk_and_goes_on_with_space(chaos: Chaos, tmp_path: Path) -> None:
    """Let the disk fill up in the middle of the second save."""
    stopped = chaos.run(SCRIPT, directory=tmp_path, faults=[chaos.fill_disk(4000)])
    assert stopped.status
    assert "No space left on device" in stopped.stderr
    chaos.run(SCRIPT, directory=tmp_path).check()
