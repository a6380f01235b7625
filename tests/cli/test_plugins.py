"""Commands, policies and stores of installed packages, from the command line."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import pytest

from tests.cli.conftest import ENVIRONMENT, Result, Run

pytestmark = pytest.mark.slow


PLUGIN_COMMANDS = """
import sys
import typer
from orbit_ckpt.policies import LatestN

print('imported', file=sys.stderr)
app = typer.Typer()

@app.command()
def first(path: str):
    print("first", path)

@app.command()
def second():
    raise typer.Exit(1)

def hello(name: str, loud: bool = False):
    '''Greet somebody.'''
    print("HELLO" if loud else "hello", name)

def keep_one():
    return LatestN(1)

class Decides:
    def should_save(self, step, previous_steps, *, context):
        return True

def ls():
    print("not the real ls")
"""


@pytest.fixture
def run(fresh: Run, tmp_path: Path) -> functools.partial[Result]:
    """Run commands where a package with plug-ins of several kinds is installed."""
    packages = tmp_path / "packages"
    info = packages / "greetings-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[orbit_ckpt.cli]\nhello = greetings:hello\nmore = greetings:app\nls = greetings:ls\n"
        "broken = greetings:missing\nunfit = greetings:__doc__\n"
        "[orbit_ckpt.policies]\none = greetings:keep_one\nlatest = orbit_ckpt.policies:LatestN\n"
        "decides = greetings:Decides\nodd = greetings:hello\n"
        "[orbit_ckpt.stores]\ncloud = orbit_ckpt.testing.fakes:MemoryClient\n"
        "bad = greetings:__doc__\n"
    )
    (packages / "greetings.py").write_text(PLUGIN_COMMANDS)
    paths = f"{packages}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    return functools.partial(fresh, env={**ENVIRONMENT, "PYTHONPATH": paths})


def test_commands_of_plugins_run_like_others(run: Run, own_run: Path) -> None:
    assert run("hello", "Ada", "--loud").out == "HELLO Ada\n"
    assert run("more", "first", "x").out == "first x\n"
    run("more", "second", status=1)
    assert "missing" in run("hello", status=2).err.lower()
    assert "not the real ls" not in run("ls", own_run).out
    assert "The command 'broken' of a plug-in cannot be used" in run("broken", status=2).err
    assert "No such command" in run("helo", status=2).err


def test_help_names_commands_of_plugins_without_importing_them(run: Run) -> None:
    shown = run("--help")
    text = shown.out
    assert "imported" not in shown.err
    assert re.search(r"hello +From the package greetings\.", text)
    assert text.count(" ls ") == 1
    assert "Greet somebody." in run("hello", "--help").out


def test_prune_and_ls_take_the_policy_of_a_plugin(run: Run, own_run: Path) -> None:
    steps = run("ls", own_run, "--policy", "one", "--json").json["steps"]
    kept = {step["step"]: step["kept_by"] for step in steps}
    assert kept == {10: ["pinned"], 20: [], 30: ["policy one", "newest"]}
    run("prune", own_run, "--policy", "one", "--yes")
    assert sorted(os.listdir(own_run)) == ["10", "30"]
    error = run("prune", own_run, "--policy", "three", "--yes", status=2).err
    assert "No usable policy 'three' is installed (installed: decides, latest, odd, one)" in error
    error = run("prune", own_run, "--policy", "decides", "--yes", status=2).err
    assert "decides when to save, not what to keep" in error
    assert sorted(os.listdir(own_run)) == ["10", "30"]


def test_plugins_tells_of_every_kind_what_can_be_used(run: Run) -> None:
    found = run("plugins", "--json", status=1).json["plugins"]
    errors = {(one["group"].partition(".")[2], one["name"]): one["error"] for one in found}
    usable = {key for key, error in errors.items() if error is None}
    assert usable == {
        *(("cli", name) for name in ("hello", "more", "ls")),
        *(("policies", name) for name in ("one", "latest", "decides")),
        ("stores", "cloud"),
    }
    assert "missing" in errors["cli", "broken"]
    assert "is no click.Command, no typer.Typer and no function" in errors["cli", "unfit"]
    assert "is no function that opens a bucket" in errors["stores", "bad"]
    assert "name" in errors["policies", "odd"]


def test_plugins_tells_of_two_that_claim_the_same(
    run: functools.partial[Result], tmp_path: Path
) -> None:
    info = tmp_path / "packages" / "salutes-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: salutes\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[orbit_ckpt.stores]\ncloud = orbit_ckpt.testing.fakes:MemoryClient\n"
        "[orbit_ckpt.cli]\nhello = greetings:hello\nbye = greetings:hello\n"
    )
    found = run("plugins", "--json", status=1).json["plugins"]
    errors = {(one["name"], one["package"]): one["error"] for one in found}
    for name in ("cloud", "hello"):
        for package in ("greetings 1.2", "salutes 0.1"):
            assert "PluginConflictError: 2 plug-ins claim the name" in errors[name, package]
    assert errors["bye", "salutes 0.1"] is None
    assert "2 plug-ins claim the name 'hello'" in run("hello", "Ada", status=2).err
    preferred = {**run.keywords["env"], "ORBIT_CKPT_PREFER_PLUGINS": "salutes"}
    assert run("hello", "Ada", env=preferred).out == "hello Ada\n"
    found = run("plugins", "--json", env=preferred, status=1).json["plugins"]
    assert {one["error"] for one in found if one["name"] in {"cloud", "hello"}} == {None}
