"""Every seeded bug makes a contract test fail, with the promise that its class names."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

FILES = sorted(Path(__file__).parent.glob("broken_*.py"))
BUGS = {
    node.name: ast.get_docstring(node) or ""
    for file in FILES
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
}
"""The broken promise by class, which is its docstring."""


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Run all contracts once; the messages of failed tests by class."""
    directory = tmp_path_factory.mktemp("seeded")
    report = directory / "report.xml"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *(f"--basetemp={directory}/runs", f"--junit-xml={report}", "--tb=line", *map(str, FILES)),
    ]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    subprocess.run(command, cwd=root, env=environment, stdout=subprocess.DEVNULL, check=False)
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - we wrote it
        name = case.attrib["classname"].rpartition(".")[2]
        text = "".join(failure.attrib["message"] for failure in case.iter("failure"))
        found[name] = found.get(name, "") + text
    return found


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_seeded_bug_is_found_and_the_promise_named(bug: str, messages: Mapping[str, str]) -> None:
    assert f"Broken promise: {BUGS[bug]} Found " in messages[bug]
