"""Programs written for Orbax print the same with `import orbit_ckpt as ocp`."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from pathlib import Path

import pytest

from tests.cells import cells

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SCRIPTS = sorted(Path(__file__).with_name("scripts").glob("*.py"))
IMPORT = "import orbax.checkpoint as ocp"


def output_of(text: str, name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a program and return the lines that it prints."""
    directory.mkdir()
    monkeypatch.setattr(sys, "argv", [name, str(directory)])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, name, "exec"), {"__name__": "__main__"})  # noqa: S102 - our own file
    return printed.getvalue().splitlines()


@pytest.mark.parametrize(
    "script", cells(SCRIPTS, lambda path: path.stem != "policies"), ids=lambda path: path.stem
)
def test_a_program_needs_another_import_only(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = script.read_text()
    assert text.count(IMPORT) == 1
    expected = output_of(text, script.name, tmp_path / "orbax", monkeypatch)
    text = text.replace(IMPORT, "import orbit_ckpt as ocp")
    assert output_of(text, script.name, tmp_path / "ours", monkeypatch) == expected
    assert len(expected) > 15
