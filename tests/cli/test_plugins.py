"""Commands, policies and stores of installed packages, from the command line."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


PLUGIN_COMMANDS = """
import typer
from orbit_ckpt.policies import LatestN

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

def keep_two():
    return LatestN(2)

class Decides:
    def should_save(self, step, previous_steps, *, context):
        return True

def ls():
    print("not the real ls")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with commands and policies, as pip would leave it."""
    info = tmp_path / "packages" / "greetings-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[orbit_ckpt.cli]\nhello = greetings:hello\nmore = greetings:app\nls = greetings:ls\n"
        "broken = greetings:missing\nunfit = greetings:__doc__\n"
        "[orbit_ckpt.policies]\ntwo = greetings:keep_two\nlatest = orbit_ckpt.policies:LatestN\n"
        "decides = greetings:Decides\nodd = greetings:hello\n"
        "[orbit_ckpt.stores]\ncloud = orbit_ckpt.testing.fakes:MemoryClient\n"
        "bad = greetings:__doc__\n"
    )
    (tmp_path / "packages" / "greetings.py").write_text(PLUGIN_COMMANDS)
    monkeypatch.delitem(sys.modules, "greetings", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    return tmp_path / "packages"


@pytest.mark.usefixtures("installed")
def test_commands_of_plugins_run_like_others(cli: Run, own_run: Path) -> None:
    assert cli("hello", "Ada", "--loud").out == "HELLO Ada\n"
    assert cli("more", "first", "x").out == "first x\n"
    cli("more", "second", status=1)
    assert "missing" in cli("hello", status=2).err.lower()
    assert "not the real ls" not in cli("ls", own_run).out
    assert "The command 'broken' of a plug-in cannot be used" in cli("broken", status=2).err
    assert "No such command" in cli("helo", status=2).err


@pytest.mark.usefixtures("installed")
def test_help_names_commands_of_plugins_without_importing_them(cli: Run) -> None:
    text = cli("--help").out
    assert re.search(r"hello +From the package greetings\.", text)
    assert text.count(" ls ") == 1
    assert "greetings" not in sys.modules
    assert "Greet somebody." in cli("hello", "--help").out


@pytest.mark.usefixtures("installed")
def test_prune_and_ls_take_the_policy_of_a_plugin(cli: Run, own_run: Path) -> None:
    steps = cli("ls", own_run, "--policy", "two", "--json").json["steps"]
    kept = {step["step"]: step["kept_by"] for step in steps}
    assert kept[20] == ["policy two"]
    cli("prune", own_run, "--policy", "two", "--yes")
    assert sorted(os.listdir(own_run)) == ["20", "30"]
    error = cli("prune", own_run, "--policy", "three", "--yes", status=2).err
    assert "No usable policy 'three' is installed (installed: decides, latest, odd, two)" in error
    error = cli("prune", own_run, "--policy", "decides", "--yes", status=2).err
    assert "decides when to save, not what to keep" in error
    assert sorted(os.listdir(own_run)) == ["20", "30"]


@pytest.mark.usefixtures("installed")
def test_plugins_tells_of_every_kind_what_can_be_used(cli: Run) -> None:
    found = cli("plugins", "--json", status=1).json["plugins"]
    errors = {(one["group"].partition(".")[2], one["name"]): one["error"] for one in found}
    usable = {key for key, error in errors.items() if error is None}
    assert usable == {
        *(("cli", name) for name in ("hello", "more", "ls")),
        *(("policies", name) for name in ("two", "latest", "decides")),
        ("stores", "cloud"),
    }
    assert "missing" in errors["cli", "broken"]
    assert "is no function and no typer.Typer" in errors["cli", "unfit"]
    assert "is no function that opens a bucket" in errors["stores", "bad"]
    assert "name" in errors["policies", "odd"]
