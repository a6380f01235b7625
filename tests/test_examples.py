"""Examples run to their end; each checks its own results and fails by its exit status."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
import sys
import textwrap
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

import orbit_ckpt
from tests.cells import cells
from tests.programs import run_command, run_script

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(
    path for folder in ("examples", "examples/recipes") for path in (ROOT / folder).glob("*.py")
)
MODULES = [path for path in (ROOT / "orbit_ckpt").rglob("*.py") if ">>>" in path.read_text()]
PAGES = [
    *sorted(
        page
        for page in (ROOT / "docs/how-to").glob("*.md")
        if page.stem != "recipes" and "```python\n" in page.read_text()
    ),
    ROOT / "docs/explanation/format.md",
]

LONG = ("train_loop", "unscan_layers")
"""Examples that `nox -s examples` runs, and a usual run of the tests does not."""

COMPILING = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
"""What spares XLA work that pays off for larger programs only."""

README_STATE = """
    import jax, jax.numpy as jnp
    import orbit_ckpt
    from orbit_ckpt import convert, save

    path = "runs/orbax"
    state = {"params": {"w": jnp.ones((4, 8)), "b": jnp.zeros(8)}, "step": jnp.int32(0)}
    sharding = jax.NamedSharding(jax.make_mesh((1,), ("x",)), jax.P("x"))

    def train_step(state):
        return {**state, "step": state["step"] + 1}

    save("runs/as_t5x", {"target": state["params"], "state": {"step": 0}})
    convert("runs/as_t5x", "t5x_run/checkpoint_0", to="t5x")
    convert("runs/as_t5x", "model.safetensors", to="safetensors", only="target/**")
"""
MULTIHOST_STATE = """
    import socket
    import jax, jax.numpy as jnp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    jax.distributed.initialize(address, 1, 0)  # before anything that makes arrays
    jax.distributed.initialize = lambda: None
    sharding = jax.NamedSharding(jax.make_mesh((1,), ("x",)), jax.P("x"))
    state = {"w": jax.device_put(jnp.ones(8), sharding)}
"""


def run(script: Path, directory: Path, *path: Path) -> str:
    """Run a script in a directory, with directories to import from; return what it prints."""
    environment = {"PYTHONPATH": os.pathsep.join([*map(str, path), *sys.path]), **COMPILING}
    config = {name.lower(): value == "1" for name, value in COMPILING.items()}
    result = run_script(
        script, path=path, directory=directory, environment=environment, config=config
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run_blocks(page: str, directory: Path, *, before: str = "") -> str:
    """Run the Python examples of a page as one script; return what they print."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert blocks
    script = directory / "page.py"
    script.write_text("\n".join([textwrap.dedent(before), *blocks]))
    return run(script, directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", cells(EXAMPLES, lambda path: path.stem not in LONG), ids=lambda path: path.stem
)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    run(example, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_examples_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    printed = run_blocks(page.read_text(), tmp_path).replace(str(tmp_path), "/home/me")
    shown = re.findall(r"^```text\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    for block in shown if page.stem in {"load", "observe"} else ():  # others are not printed
        assert block in printed


@pytest.mark.slow
def test_the_readme_runs(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    run_blocks(page, tmp_path, before=README_STATE)
    commands = re.findall(r"^orbit-ckpt (.*?)(?: {2,}#.*)?$", page, re.MULTILINE)
    assert len(commands) >= 7
    for command in commands:
        done = run_command(*shlex.split(command), directory=tmp_path)
        status = 1 if command.startswith("diff") else 0  # two steps do differ
        assert done.returncode == status, command + done.stdout + done.stderr


@pytest.mark.slow
def test_examples_for_several_processes_run_on_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/explanation/multihost.md").read_text()
    run_blocks(page.replace("/shared", str(tmp_path)), tmp_path, before=MULTIHOST_STATE)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: f"{path.parent.stem}.{path.stem}")
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
