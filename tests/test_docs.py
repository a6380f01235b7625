"""The documentation names nothing that does not exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "orbit_ckpt"
IMPLEMENTATION = PACKAGE / "_src"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(ROOT / "docs").rglob("*.md"),
]
MODULES = {
    ".".join(path.relative_to(IMPLEMENTATION).with_suffix("").parts)
    for path in IMPLEMENTATION.rglob("*.py")
    if not path.stem.startswith("__")
}
PUBLIC = {path.stem for path in PACKAGE.glob("*.py")}
NO_MODULES = {"metadata.json"}
ENTRY_POINTS = {"orbit_ckpt.items"}


def exists(name: str) -> bool:
    """Return whether a dotted name is public, or a module of the implementation or in one."""
    return any(exists_in(package, name) for package in ("orbit_ckpt", "orbit_ckpt._src"))


def exists_in(package: str, name: str) -> bool:
    """Return whether a dotted name is a module of a package, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), -1, -1):
        try:
            found = importlib.import_module(".".join([package, *parts[:count]]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_names_in_the_documentation_exist() -> None:
    roots = {module.partition(".")[0] for module in MODULES} | PUBLIC | {"ocp", "orbit_ckpt"}
    missing: list[str] = []
    count = 0
    for page in PAGES:
        for name in re.findall(r"`((?:[a-z_0-9]+\.)+\w+)(?:\([^`]*\))?`", page.read_text()):
            if name.partition(".")[0] not in roots or name in NO_MODULES | ENTRY_POINTS:
                continue
            count += 1
            short = re.sub(r"^(ocp|orbit_ckpt)\.", "", name)
            names = [short, f"v1.{short}"] if page.stem.endswith("_v1") else [short]
            if not any(map(exists, names)):
                missing.append(f"{page.name}: {name}")
    assert missing == []
    assert count > 50


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
