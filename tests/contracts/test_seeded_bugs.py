"""Every seeded bug breaks the promise that the docstring of its class quotes."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
KINDS = ["formats", "item_handlers", "policies", "stores", "type_handlers"]


class Bug(NamedTuple):
    """A class of tests of a broken plug-in.

    Attributes:
        promise: The promise that it breaks.
        test: The node id of the test of that promise.
    """

    promise: str
    test: str


def bugs_in(kind: str) -> dict[str, Bug]:
    """Return the bugs in plug-ins of a kind by the name of their class."""
    name = f"tests.contracts.broken_{kind}"
    file = name.replace(".", "/") + ".py"
    found: dict[str, Bug] = {}
    for cls in vars(importlib.import_module(name)).values():
        if isinstance(cls, type) and cls.__name__.startswith("Test") and cls.__module__ == name:
            promise = inspect.getdoc(cls) or ""
            tests = [t for t in dir(cls) if (inspect.getdoc(getattr(cls, t)) or "") == promise]
            assert len(tests) == 1, f"{cls.__name__} quotes the promise of {tests}"
            found[cls.__name__] = Bug(promise, f"{file}::{cls.__name__}::{tests[0]}")
    return found


BUGS = {name: bug for kind in KINDS for name, bug in bugs_in(kind).items()}


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Run the test of every bug; the messages of failures by class."""
    directory = tmp_path_factory.mktemp("seeded")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *(f"--basetemp={directory}/runs", f"--junit-xml={directory}/report.xml"),
        *(bug.test for bug in BUGS.values()),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
    cases = ET.parse(directory / "report.xml").iter("testcase")  # noqa: S314 - we wrote it
    return {
        case.attrib["classname"].rpartition(".")[2]: failure.attrib["message"]
        for case in cases
        for failure in case.iter("failure")
    }


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_seeded_bug_breaks_its_promise(bug: str, messages: Mapping[str, str]) -> None:
    promise = BUGS[bug].promise
    assert f"PromiseBrokenError: Broken promise: {promise} Found " in messages.get(bug, "")


def test_every_kind_of_plugin_has_bugs() -> None:
    files = {path.stem.removeprefix("broken_") for path in Path(__file__).parent.glob("broken_*")}
    assert files == set(KINDS)
    assert all(bugs_in(kind) for kind in KINDS)
