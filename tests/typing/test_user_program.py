"""A typed program runs; `nox -s types` checks its types."""

from __future__ import annotations

from pathlib import Path

from tests.programs import run_script

PROGRAM = Path(__file__).with_name("user_program.py")


def test_the_typed_program_runs(tmp_path: Path) -> None:
    result = run_script(PROGRAM, tmp_path)
    assert result.returncode == 0, result.stderr
