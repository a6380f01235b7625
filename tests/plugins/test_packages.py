"""The packages in `examples/plugins` work once they are installed, without any import of them."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.programs import ROOT

PACKAGES = sorted((ROOT / "examples" / "plugins").glob("*/pyproject.toml"))
MODULES = ("orbit_ckpt_dataloader", "orbit_ckpt_example", "orbit_ckpt_gguf", "orbit_ckpt_quantized")

AUTHOR = """
import sys
import jax.numpy as jnp
import orbit_ckpt as ocp
from orbit_ckpt_dataloader import DataSave, ShardedLoader
from orbit_ckpt_example import Interval
from orbit_ckpt_quantized import quantize

ocp.save("weights", {"w": jnp.arange(12.0).reshape(3, 4)})
ocp.save("quantized", {"w": quantize(jnp.arange(12.0).reshape(3, 4)), "range": Interval(0.0, 1.0)})
loader = ShardedLoader(range(100), batch_size=4)
next(loader)
with ocp.CheckpointManager("run") as manager:
    items = {"data": DataSave(loader), "weights": ocp.args.StandardSave({"step": 1})}
    manager.save(1, args=ocp.args.Composite(**items))
"""

USER = """
import sys
import numpy as np
import orbit_ckpt as ocp

assert not [name for name in sys.modules if name.startswith("orbit_ckpt_")]

ocp.convert("weights", "model.gguf", to="gguf", custom_metadata={"general.architecture": "llama"})
weights = ocp.load("model.gguf")
assert (weights["w"] == np.arange(12.0).reshape(3, 4)).all()
assert ocp.detect_format("model.gguf") == "gguf"
ocp.save("from_gguf", weights)

state = ocp.load("quantized")
assert type(state["w"]).__name__ == "QuantizedArray"
ocp.save("copy", state)
assert ocp.diff("quantized", "copy", values=True).is_same
assert ocp.load("copy", like=state)["range"] == state["range"]

with ocp.CheckpointManager("run") as manager:
    assert manager.restore(1).data == {"position": 4, "examples": 100, "seed": None}
with ocp.CheckpointManager("own") as manager:
    for step, tree in enumerate((state, weights)):
        manager.save(step, args=ocp.args.StandardSave(tree))
    manager.wait_until_finished()
    found = manager.restore(0)["w"]
    assert (np.asarray(found.values) == np.asarray(state["w"].values)).all()
"""


def execute(directory: Path, environment: dict[str, str], *arguments: str) -> str:
    """Run Python in a directory; return what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the packages into a directory; return variables with which Python imports them."""
    directory = tmp_path_factory.mktemp("installed")
    packages = [str(path.parent) for path in PACKAGES]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = ["-m", "pip", "install", "--quiet", *options, "--target", str(directory), *packages]
    execute(directory, dict(os.environ), *command)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}


@pytest.fixture(scope="module")
def used(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory in which the packages were used without an import of them."""
    directory = tmp_path_factory.mktemp("used")
    execute(directory, environment, "-c", AUTHOR)
    execute(directory, environment, "-c", USER)
    return directory


@pytest.mark.slow
def test_load_save_and_managers_use_installed_packages(used: Path) -> None:
    assert (used / "own").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["verify", "model.gguf"], "intact"),
        (["tree", "quantized"], "int8"),
        (["verify", "run/1"], "intact"),
        (["convert", "weights", "again.gguf", "--to", "gguf"], ""),
        pytest.param(["tree", "model.gguf"], "float32", marks=pytest.mark.matrix),
        pytest.param(["verify", "quantized"], "intact", marks=pytest.mark.matrix),
        pytest.param(["convert", "model.gguf", "1", "--to", "orbit"], "", marks=pytest.mark.matrix),
        pytest.param(["convert", "quantized", "2", "--to", "orbit"], "", marks=pytest.mark.matrix),
    ],
    ids=" ".join,
)
def test_the_command_line_uses_installed_packages(
    command: Sequence[str], shown: str, used: Path, environment: dict[str, str]
) -> None:
    assert shown in execute(used, environment, "-m", "orbit_ckpt.cli", *command)


@pytest.mark.slow
def test_plugins_lists_installed_packages(tmp_path: Path, environment: dict[str, str]) -> None:
    printed = execute(tmp_path, environment, "-m", "orbit_ckpt.cli", "plugins", "--json")
    found = {(one["group"], one["package"], one["error"]) for one in json.loads(printed)["plugins"]}
    assert found == {
        ("orbit_ckpt.formats", "orbit-ckpt-gguf 0.1.0", None),
        ("orbit_ckpt.items", "orbit-ckpt-dataloader 0.1.0", None),
        ("orbit_ckpt.type_handlers", "orbit-ckpt-example 0.1.0", None),
        ("orbit_ckpt.type_handlers", "orbit-ckpt-quantized 0.1.0", None),
    }


def block_private_modules(monkeypatch: pytest.MonkeyPatch, plugin: str) -> None:
    """Let imports of private modules fail in the modules of a plug-in."""
    unblocked = builtins.__import__

    def blocked(name: str, variables: Any = None, *args: Any) -> ModuleType:
        importer = (variables or {}).get("__name__", "")
        parts = [*name.split("."), *((args[1] or ()) if len(args) > 1 else ())]
        if importer.partition(".")[0] == plugin and "_src" in parts:
            raise ImportError(f"{importer} imports a private module: {'.'.join(parts)}")
        return unblocked(name, variables, *args)

    for name in [name for name in sys.modules if name.partition(".")[0] == plugin]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", blocked)


def import_all(plugin: str) -> None:
    package = importlib.import_module(plugin)
    for module in pkgutil.walk_packages(package.__path__, f"{plugin}."):
        importlib.import_module(module.name)


@pytest.mark.parametrize("plugin", MODULES)
def test_packages_import_no_private_module(plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block_private_modules(monkeypatch, plugin)
    import_all(plugin)


@pytest.mark.parametrize("line", ["import orbit_ckpt._src.errors", "from orbit_ckpt import _src"])
def test_an_import_of_a_private_module_is_noticed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "private_plugin").mkdir()
    (tmp_path / "private_plugin" / "__init__.py").write_text("")
    (tmp_path / "private_plugin" / "inner.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    block_private_modules(monkeypatch, "private_plugin")
    with pytest.raises(ImportError, match=r"inner imports a private module: orbit_ckpt\._src"):
        import_all("private_plugin")


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_packages_and_their_tests_name_no_private_module(path: Path) -> None:
    assert not [file for file in path.parent.rglob("*.py") if "_src" in file.read_text()]


@pytest.mark.slow
def test_a_renamed_copy_of_the_template_keeps_the_contract(tmp_path: Path) -> None:
    copy = tmp_path / "ranges"
    renamed = {"orbit-ckpt-example": "ranges", "orbit_ckpt_example": "ranges", "Interval": "Range"}
    shutil.copytree(ROOT / "examples" / "plugins" / "template", copy)
    (copy / "src" / "orbit_ckpt_example").rename(copy / "src" / "ranges")
    for file in [copy / "pyproject.toml", *copy.rglob("*.py")]:
        text = file.read_text()
        for old, new in renamed.items():
            text = text.replace(old, new)
        file.write_text(text)
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = execute(
        copy, variables, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "loads"
    )
    assert " passed" in printed
