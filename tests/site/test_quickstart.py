"""The quickstart prints what it shows, and its notebook is the same.

`ORBIT_CKPT_WRITE_DOCS=1 pytest tests/site` makes the notebook anew; `nox -s docs` runs it.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from tests.programs import run_script
from tests.site.notebook import NOTEBOOK, PAGE, ROOT, make_notebook

WRITE = "ORBIT_CKPT_WRITE_DOCS" in os.environ


@pytest.mark.slow
def test_the_quickstart_prints_what_it_shows(tmp_path: Path) -> None:
    page = PAGE.read_text()
    script = tmp_path / "quickstart.py"
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    script.write_text("\n".join(text for kind, text in blocks if kind == "python"))
    done = run_script(script, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(text for kind, text in blocks if kind == "text")


def test_the_notebook_is_the_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    made = make_notebook(PAGE.read_text(), project["urls"]["Documentation"])
    if WRITE:
        NOTEBOOK.write_text(made)
    assert NOTEBOOK.read_text() == made, "run ORBIT_CKPT_WRITE_DOCS=1 pytest tests/site"
