"""A program that is killed at each of its operations in turn."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from orbit_ckpt.testing.chaos import Chaos, Result, Run
from orbit_ckpt.testing.chaos.points import POINTS, chosen_points

pytest_plugins = ["orbit_ckpt.testing.chaos"]

COUNTS = """
import json, os

count = 0
if os.path.exists("count.json"):
    with open("count.json") as file:
        count = json.load(file)
while count < 3:
    count += 1
    with open("count.json.new", "w") as file:
        json.dump(count, file)
    os.replace("count.json.new", "count.json")
print("counted to", count)
"""
"""Nine operations: it opens, writes and renames three times."""

IN_PLACE = COUNTS.replace("count.json.new", "count.json")


@pytest.fixture
def light(chaos: Chaos) -> Chaos:
    """Scripts start quickly, because they need no JAX."""
    chaos.preload = ("json",)
    return chaos


class Program:
    """A script, and how it has run."""

    def __init__(self, chaos: Chaos, script: Path, code: str) -> None:
        self.results: list[Result] = []
        self._chaos = chaos
        self._script = script
        script.write_text(code)

    def run(self, directory: Path) -> Run:
        return self._chaos.run(self._script, directory=directory)

    def check(self, result: Result) -> None:
        self.results.append(result)
        assert result.run.stdout == result.undisturbed.stdout


def test_a_program_that_resumes_passes(light: Chaos, tmp_path: Path) -> None:
    program = Program(light, tmp_path / "script.py", COUNTS)
    assert light.every_point(program.run, program.check) == 9
    undisturbed, *others = program.results
    assert undisturbed.point is None
    assert [len(undisturbed.runs), *(len(result.runs) for result in others)] == [1] + [2] * 9
    points = [result.point for result in others]
    assert points == list(undisturbed.undisturbed.operations)
    assert all(result.runs[0][0].was_killed for result in others)


def test_one_that_saves_in_place_is_caught(light: Chaos, tmp_path: Path) -> None:
    program = Program(light, tmp_path / "script.py", IN_PLACE)
    with pytest.raises(AssertionError, match="The program does not resume") as caught:
        light.every_point(program.run, program.check)
    text = str(caught.value)
    assert "Point 2 of 9: kill at operation 2: write of 1 bytes count.json" in text
    assert "json.decoder.JSONDecodeError" in text


def test_what_the_check_raises_names_the_point(light: Chaos, tmp_path: Path) -> None:
    forgets = COUNTS.replace("count = json.load(file)", "count = json.load(file) + 2")
    program = Program(light, tmp_path / "script.py", forgets)
    with pytest.raises(AssertionError) as caught:
        light.every_point(program.run, program.check)
    (note,) = caught.value.__notes__
    assert "Point 7 of 9: kill at operation 7: open count.json.new" in note
    assert f"{POINTS}=7 pytest " in note
    assert "test_what_the_check_raises_names_the_point" in note
    assert "counted to 4" in note


def test_the_commands_of_a_failure_repeat_it(light: Chaos, tmp_path: Path) -> None:
    program = Program(light, tmp_path / "script.py", IN_PLACE)
    with pytest.raises(AssertionError) as caught:
        light.every_point(program.run, program.check)
    lines = str(caught.value).splitlines()
    at = lines.index("By hand, in an empty directory:")
    (tmp_path / "by_hand").mkdir()
    killed, resumed = (
        subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=tmp_path / "by_hand",
            capture_output=True,
            text=True,
            check=False,
        )
        for line in lines[at + 1 : at + 3]
    )
    assert killed.returncode in (-9, 128 + 9)  # that of the shell
    assert "JSONDecodeError" in resumed.stderr
    (left,) = [Path(line.split()[-1]) for line in lines if line.startswith("What is left")]
    assert [*os.listdir(left)] == ["count.json"]


def test_one_point_can_be_chosen(
    light: Chaos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POINTS, "3,8")
    program = Program(light, tmp_path / "script.py", COUNTS)
    assert light.every_point(program.run, program.check) == 2
    assert [r.point.number for r in program.results if r.point is not None] == [3, 8]


def test_other_faults_than_kills_come_to_every_point(light: Chaos, tmp_path: Path) -> None:
    program = Program(light, tmp_path / "script.py", COUNTS)
    assert light.every_point(program.run, program.check, fault=light.fail) == 9
    assert all(result.runs[0][0].status == 1 for result in program.results[1:])
    torn = Program(light, tmp_path / "script.py", IN_PLACE)
    with pytest.raises(AssertionError, match="tear at operation 2: write of 1 bytes"):
        light.every_point(torn.run, torn.check, fault=light.tear)


def test_points_are_tried_at_once(light: Chaos, tmp_path: Path) -> None:
    program = Program(light, tmp_path / "script.py", COUNTS)
    assert light.every_point(program.run, program.check, jobs=3) == 9
    found = [r.point.number for r in program.results if r.point is not None]
    assert sorted(found) == list(range(1, 10))


def test_one_process_of_several_meets_with_the_fault(light: Chaos, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(COUNTS)

    def run(directory: Path) -> list[Run]:
        for name in ("0", "1"):
            (directory / name).mkdir(exist_ok=True)
        scripts = [light.start(script, directory=directory / name) for name in ("0", "1")]
        return light.wait_for_all(*scripts)

    def check(result: Result) -> None:
        assert [found.stdout for found in result.runs[-1]] == ["counted to 3\n"] * 2
        if result.point is not None:
            assert result.runs[0][1].was_killed

    assert light.every_point(run, check, most=3, process=1) == 3


def test_a_script_that_fails_undisturbed_is_an_error(light: Chaos, tmp_path: Path) -> None:
    program = Program(light, tmp_path / "script.py", "raise SystemExit('not today')")
    with pytest.raises(AssertionError, match=r"undisturbed run failed(.|\n)*not today"):
        light.every_point(program.run, program.check)


def test_a_check_that_fails_undisturbed_is_an_error(light: Chaos, tmp_path: Path) -> None:
    program = Program(light, tmp_path / "script.py", COUNTS)

    def check(_: Result) -> None:
        raise KeyError("no such metric")

    with pytest.raises(KeyError) as caught:
        light.every_point(program.run, check)
    assert "The check fails for the undisturbed run" in caught.value.__notes__[0]


def test_a_program_must_save_below_its_directory(light: Chaos, tmp_path: Path) -> None:
    program = Program(light, tmp_path / "script.py", "open('../elsewhere', 'w').close()")
    with pytest.raises(ValueError, match="changed nothing below"):
        light.every_point(program.run, program.check)
    with pytest.raises(ValueError, match="started 0 scripts"):
        light.every_point(lambda _: None, program.check)


def test_samples_are_spread_and_reproducible() -> None:
    assert chosen_points(5, None, 0) == chosen_points(5, 9, 0) == [1, 2, 3, 4, 5]
    sample = chosen_points(1000, 10, seed=3)
    assert sample == chosen_points(1000, 10, seed=3) != chosen_points(1000, 10, seed=4)
    assert [(point - 1) // 100 for point in sample] == list(range(10))


def test_the_command_line_quotes_paths(light: Chaos, tmp_path: Path) -> None:
    script = tmp_path / "my script.py"
    script.write_text("open('f', 'w')")
    found = light.run(script, "an argument", directory=tmp_path).check()
    assert shlex.split(found.command.shell())[1:] == [str(script), "an argument"]
