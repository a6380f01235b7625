"""The documentation names every module, and nothing that does not exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "orbit_ckpt"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if not path.stem.startswith("__")
}
NO_MODULES = {"metadata.json"}


def exists(name: str) -> bool:
    """Return whether a dotted name is a module of the package, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), -1, -1):
        try:
            found = importlib.import_module(".".join(["orbit_ckpt", *parts[:count]]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_every_module_is_in_the_architecture() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    assert sorted(module for module in MODULES if f"`{module}`" not in page) == []


def test_names_in_the_documentation_exist() -> None:
    roots = {module.partition(".")[0] for module in MODULES} | {"ocp", "orbit_ckpt"}
    missing: list[str] = []
    count = 0
    for page in PAGES:
        for name in re.findall(r"`((?:[a-z_0-9]+\.)+\w+)(?:\([^`]*\))?`", page.read_text()):
            if name.partition(".")[0] not in roots or name in NO_MODULES:
                continue
            count += 1
            if not exists(re.sub(r"^(ocp|orbit_ckpt)\.", "", name)):
                missing.append(f"{page.name}: {name}")
    assert missing == []
    assert count > 100


def test_files_that_the_documentation_names_exist() -> None:
    missing = [
        f"{page.name}: {name}"
        for page in PAGES
        for name in re.findall(
            r"`((?:orbit_ckpt|tests|benchmarks|examples|docs)/[\w/.-]+)`", page.read_text()
        )
        if not (ROOT / name).exists()
    ]
    assert missing == []
