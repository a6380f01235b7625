"""The page about the chaos kit, and the tests of its example, as a user runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orbit_ckpt.testing.chaos.points import POINTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "chaos"


def run_pytest(directory: Path) -> str:
    """Run the tests in a directory at one point each; return what pytest prints."""
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": paths, POINTS: "60"},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout + run.stderr


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "chaos.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "test_page.py").write_text("\n".join(blocks))
    shutil.copy(EXAMPLE / "train.py", tmp_path)
    assert "4 passed" in run_pytest(tmp_path)


def test_the_tests_of_the_example_find_a_planted_bug(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "test_train.py", tmp_path)
    code = (EXAMPLE / "train.py").read_text()
    (tmp_path / "train.py").write_text(code.replace("data=ocp.args.StatefulRestore(batches)", ""))
    printed = run_pytest(tmp_path)
    assert re.search(r"E +Point 60 of \d+: kill at operation 60: \w+", printed), printed
    assert f"Again: {POINTS}=60 pytest 'test_train.py::test_training_resumes" in printed
    assert "1 failed, 1 passed" in printed
