"""Packages that import Orbax give the same results with this library installed as Orbax.

These are the packages that the tests need anyway; `nox -s clients` has others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cells import cells
from tests.clients.exchange import PROGRAMS, exchange, run_as_orbax
from tests.programs import run_script

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def run_with_orbax(program: Path, *arguments: object) -> str:
    """Run a program in a process that is forked from one that has imported Orbax."""
    result = run_script(program, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    "name",
    cells(["flax_training", "flax_nnx", "grain_iterators"], lambda name: name == "flax_training"),
)
def test_results_are_those_of_orbax(name: str, tmp_path: Path) -> None:
    program = PROGRAMS / f"{name}.py"
    assert exchange(program, tmp_path, orbax=run_with_orbax, ours=run_as_orbax) == []
