"""The API reference describes every public name once; other paths of a name link there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

from tests.test_public_api import PUBLIC

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGES = {path: path.read_text() for path in REFERENCE.rglob("*.md")}
DESCRIBED = Counter(
    name for text in PAGES.values() for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)
)
IN_WORDS = {"orbit_ckpt.v1.path.Path": "`Path` is `pathlib.Path`"}
ON_PAGES = {
    "orbit_ckpt.testing": "testing.md",
    "orbit_ckpt.transform": "transforms.md",
    "orbit_ckpt.transform_utils": "transforms.md",
}


def is_same(one: object, other: object) -> bool:
    """Return whether two values are one class or function, or equal constants."""
    return one is other or (not callable(one) and type(one) is type(other) and one == other)


def names_of(module: str) -> list[str]:
    """Return the public names of a module that are no modules."""
    return [
        name
        for name in sorted(PUBLIC[module])
        if not isinstance(resolve_name(f"{module}:{name}"), ModuleType)
    ]


def section(module: str) -> str:
    """Return the text about a module."""
    if module in ON_PAGES:
        return PAGES[REFERENCE / ON_PAGES[module]]
    for text in PAGES.values():
        _, heading, rest = text.partition(f"## `{module}` {{ #{module} }}\n")
        if heading:
            return re.split(r"^## `orbit_ckpt", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return ""


def test_no_name_is_described_twice_and_all_are_public() -> None:
    assert [name for name, count in DESCRIBED.items() if count > 1] == []
    assert [name for name in DESCRIBED if "._" in name] == []


def test_every_public_name_is_described_under_one_of_its_paths() -> None:
    values = [resolve_name(name) for name in DESCRIBED]
    missing = [
        f"{module}.{name}"
        for module in PUBLIC
        for name in names_of(module)
        if f"{module}.{name}" not in IN_WORDS
        and not any(is_same(resolve_name(f"{module}:{name}"), value) for value in values)
    ]
    assert missing == [], "add `::: NAME` for each to a page of docs/reference/api"


def test_the_section_of_a_module_has_or_links_its_names() -> None:
    missing: list[str] = []
    for module in PUBLIC.keys() - {"orbit_ckpt"}:
        text = section(module)
        if not text:
            missing.append(f"## `{module}` {{ #{module} }}")
        links = dict(re.findall(r"\[`(\w+)`\]\[(orbit_ckpt\.[\w.]+)\]", text))
        assert set(links.values()) <= DESCRIBED.keys()
        for name, target in links.items():
            if name in PUBLIC[module]:
                assert is_same(resolve_name(f"{module}:{name}"), resolve_name(target)), name
        described = {n.rpartition(".")[2] for n in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
        described |= {name for name in PUBLIC[module] if f"`{name}` is `" in text}
        names = {*names_of(module)} - described - links.keys()
        missing += [f"{module}.{name}" for name in sorted(names)]
    assert missing == [], "add these to their page in docs/reference/api"


def test_every_page_is_in_the_navigation() -> None:
    config = (REFERENCE.parents[1] / "mkdocs.yml").read_text()
    pages = [str(path.relative_to(REFERENCE.parent)) for path in PAGES]
    assert [page for page in pages if page not in config] == []
