"""The modules of the v1 API export Orbax's names, and are reached by Orbax's paths."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import orbax.checkpoint.experimental.v1 as orbax
import pytest

import orbit_ckpt.v1

MODULES = [
    *("", "arrays", "errors", "handlers", "multihost", "options", "partial", "path", "path.step"),
    *("training", "tree"),
]


def names_in(module: str) -> set[str]:
    """Return what a module of Orbax imports for its users."""
    found = importlib.import_module(".".join(filter(None, [orbax.__name__, module])))
    tree = ast.parse(Path(found.__file__ or "").read_text())
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orbax"):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


@pytest.mark.interop
@pytest.mark.parametrize("module", MODULES)
def test_names_are_those_of_orbax(module: str) -> None:
    name = ".".join(filter(None, ["orbit_ckpt.v1", module]))
    assert set(importlib.import_module(name).__all__) == names_in(module)


def test_experimental_is_the_same_module() -> None:
    assert importlib.import_module("orbit_ckpt.experimental.v1") is orbit_ckpt.v1
    options = importlib.import_module("orbit_ckpt.experimental.v1.options")
    assert options.ArrayOptions is orbit_ckpt.v1.options.ArrayOptions


def test_modules_are_imported_when_they_are_used() -> None:
    code = (
        "import sys, orbit_ckpt; assert not [n for n in sys.modules if '.v1' in n]; "
        "import orbit_ckpt.v1; assert not [n for n in sys.modules if '_src.v1' in n]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
