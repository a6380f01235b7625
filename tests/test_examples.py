"""Examples run to their end; each checks its own results and fails by its exit status."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

import orbit_ckpt

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MODULES = [path for path in (ROOT / "orbit_ckpt").rglob("*.py") if ">>>" in path.read_text()]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))


def run(script: Path, directory: Path, *path: Path) -> None:
    """Run a script in a directory, with directories to import from."""
    paths = os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, script],
        check=False,
        cwd=directory,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths.strip(os.pathsep)},
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    run(example, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_examples_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    run(script, tmp_path)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_examples_in_docstrings_are_right(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = ".".join(module.relative_to(ROOT).with_suffix("").parts)
    known = {"np": np, "jax": jax, "orbit_ckpt": orbit_ckpt}
    result = doctest.testmod(importlib.import_module(name), extraglobs=known)
    assert result.attempted
    assert not result.failed


@pytest.mark.slow
def test_a_package_with_an_item_of_its_own_works_once_it_is_installed(tmp_path: Path) -> None:
    package = ROOT / "examples" / "custom_item"
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    # what an installation leaves behind, without pip
    installed = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    entries = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in names.items())
        for group, names in project["entry-points"].items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(entries))
    run(package / "run.py", tmp_path, package, tmp_path)
