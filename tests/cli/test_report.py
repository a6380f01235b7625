"""The page about a checkpoint: in one file, safe whatever leaves are called, alive in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.report import write_report
from orbit_ckpt.errors import CheckpointNotFoundError, StorageError
from tests.cli.conftest import Run

NASTY = "</script><img src=x onerror=document.title=1>"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
_EMPTY = frozenset({"meta", "link", "img", "input", "br", "hr", "col"})


class Elements(HTMLParser):
    """The elements of a page, its title, and whether all that are opened are closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.title = ""
        self.is_balanced = True
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.is_balanced &= not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.is_balanced &= bool(self._open) and self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "title":
            self.title += data


def data_of(page: str) -> dict[str, Any]:
    """Return the JSON in a page, leaves as objects by name."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["leaves"]]
    data["leaves"] = {row["name"]: row for row in rows}
    return data


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    """Return a checkpoint whose names try to leave their places."""
    tree = {
        NASTY: np.ones(3000, np.float32),
        "a": {"kernel": np.arange(12.0).reshape(3, 4), "bias": np.array([1.0, np.nan])},
        "b": {"kernel": np.full((10, 10), 7, np.int32)},
        "{{data}}": {"__proto__": np.array([2**62]), "constructor": "{{title}}"},
    }
    ocp.save(tmp_path / NASTY.replace("/", ""), tree, custom_metadata={"note": NASTY})
    return tmp_path / NASTY.replace("/", "")


def test_the_page_of_a_run_has_its_steps_and_the_leaves_of_the_newest(
    cli: Run, run_directory: Path, tmp_path: Path
) -> None:
    printed = cli("report", run_directory, "-o", "report.html", "--json").json
    page = (tmp_path / "report.html").read_text()
    assert printed["bytes"] == len(page.encode())
    data = data_of(page)
    assert [step["step"] for step in data["history"]] == [10, 20, 30]
    assert data["history"][1]["metrics"] == {"loss": 0.25}
    assert [step["pinned"] for step in data["history"]] == [True, False, False]
    assert data["shown"] == "30"
    stats = cli("stats", run_directory / "30", "--json").json["leaves"]
    for row in stats:
        leaf = data["leaves"][row["name"]]
        assert all(leaf[name] == row[name] for name in ("min", "max", "mean", "l2", "nans", "infs"))


def test_the_leaves_of_a_page_are_those_of_the_metadata(nasty: Path, tmp_path: Path) -> None:
    write_report(nasty, tmp_path / "report.html")
    data = data_of((tmp_path / "report.html").read_text())
    known = {
        "/".join(str(key.key) for key in path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(ocp.metadata(nasty).tree)[0]
    }
    assert set(data["leaves"]) == set(known)
    for name, leaf in data["leaves"].items():
        if leaf["kind"] == "string":
            continue
        wanted = known[name]
        assert (leaf["dtype"], tuple(leaf["shape"])) == (str(wanted.dtype), wanted.shape)
        assert leaf["nbytes"] == wanted.nbytes
    assert data["leaves"]["{{data}}/__proto__"]["max"] == str(2**62)
    assert data["custom_metadata"] == {"note": NASTY}
    assert data["history"] == []


def test_the_page_is_one_file_that_fetches_nothing(nasty: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert write_report(nasty, file, statistics=False) == file.stat().st_size
    text = file.read_text()
    page = Elements(text)
    assert page.is_balanced
    assert not [tag for tag, attrs in page.tags if {"src", "href", "data"} & attrs.keys()]
    assert not {"img", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp|innerHTML", text)
    policy = next(a for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy["content"]).startswith("default-src 'none';")
    assert page.title.startswith(nasty.name)
    assert data_of(text)["leaves"]["a/kernel"]["min"] is None


def test_a_page_of_another_programs_checkpoint(tmp_path: Path) -> None:
    sample = Path(__file__).parents[1] / "formats" / "samples" / "eformer" / "run-20_structured"
    write_report(sample, tmp_path / "report.html")
    data = data_of((tmp_path / "report.html").read_text())
    assert data["leaves"]["model/dense/kernel"]["shape"] == [3, 4]
    assert data["leaves"]["tx/count"]["max"] == 5


def test_a_page_that_cannot_be_written_and_what_is_no_checkpoint(nasty: Path) -> None:
    with pytest.raises(StorageError, match="no file can be written there"):
        write_report(nasty, nasty / "none" / "report.html")
    with pytest.raises(CheckpointNotFoundError):
        write_report(nasty / "none", nasty.parent / "report.html")
    assert not (nasty.parent / "report.html").exists()


def brightness(colour: str) -> float:
    """Return the relative luminance of a colour `#rrggbb`, as WCAG defines it."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_texts_stand_out_in_light_and_dark(nasty: Path, tmp_path: Path) -> None:
    write_report(nasty, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    modes = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    assert len(modes) == 2
    for mode in modes:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", mode))
        for name, behind in product(
            ("ink", "soft", "faint", "accent", "bad"), ("page", "surface", "hover")
        ):
            low, high = sorted(brightness(colours[part]) for part in (name, behind))
            assert (high + 0.05) / (low + 0.05) >= 4.5, f"{name} on {behind}: {mode}"


Browse = Callable[..., str]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Return what opens a page in Chromium and returns what it has become."""
    chromium = CHROMIUM
    if chromium is None:
        pytest.skip("needs Chromium")

    def run(file: Path, fragment: str = "", *options: str) -> str:
        done = subprocess.run(
            [
                *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
                *("--virtual-time-budget=3000", "--enable-logging=stderr", "--v=0"),
                *("--window-size=1300,1000", f"--user-data-dir={tmp_path / 'profile'}", *options),
                file.as_uri() + fragment,
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "CONSOLE" not in done.stderr, done.stderr  # errors, or what the policy refused
        assert 'data-ready="yes"' in done.stdout
        return done.stdout

    return run


def text_of(dom: str, element: str) -> str:
    """Return the text of an element that has others of its kind not within it."""
    found = re.search(rf'<(\w+)[^>]* id="{element}"[^>]*>(.*?)</\1>', dom, re.DOTALL)
    assert found is not None, element
    return re.sub(r"<[^>]*>", "", found[2])


def rows_of(dom: str) -> list[str]:
    """Return the names of the leaves in the table, as they are shown."""
    return re.findall(r'<td class="name"[^>]*><bdi[^>]*>(.*?)</bdi>', dom)


@pytest.mark.slow
def test_names_are_text_wherever_they_are_shown(
    browse: Browse, nasty: Path, tmp_path: Path
) -> None:
    write_report(nasty, tmp_path / "report.html")
    dom = browse(tmp_path / "report.html")
    assert "<img" not in dom
    assert len(rows_of(dom)) == 6
    assert "&lt;/script&gt;&lt;img src=x onerror=document.title=1&gt;" in rows_of(dom)
    assert "&lt;script&gt;&lt;img" in text_of(dom, "title")
    assert "{{data}}/__proto__" in rows_of(dom)
    assert 'class="right bad" title="1">1<' in dom  # the NaN
    assert "leaf with NaN or Inf" in dom


@pytest.mark.slow
def test_leaves_are_searched_sorted_and_looked_into(
    browse: Browse, nasty: Path, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    write_report(nasty, file)
    assert rows_of(browse(file, "#search=KERNEL&sort=-max")) == ["a/kernel", "b/kernel"]
    assert rows_of(browse(file, "#search=kernel&sort=max")) == ["b/kernel", "a/kernel"]
    dom = browse(file, "#at=a")
    assert rows_of(dom) == ["a/bias", "a/kernel"]
    assert text_of(dom, "count") == "2 of 6 leaves below a"
    assert "112 B, 0.9 %, 2 leaves" in text_of(dom, "crumbs")
    assert len(re.findall(r'<div class="cell"', dom)) == 2


@pytest.mark.slow
def test_the_treemap_gives_every_module_its_share_of_the_area(
    browse: Browse, tmp_path: Path
) -> None:
    sizes = {"a": 6000, "b": 3000, "c": 1000}
    tree = {name: {"w": np.zeros(size, np.int8)} for name, size in sizes.items()}
    ocp.save(tmp_path / "tree", tree)
    write_report(tmp_path / "tree", tmp_path / "report.html")
    dom = browse(tmp_path / "report.html")
    areas: dict[str, float] = {}
    for tag, attrs in Elements(dom).tags:
        if tag == "div" and attrs.get("class") == "group":
            style = dict(re.findall(r"(\w+): ([\d.]+)px", attrs["style"] or ""))
            name = (attrs["aria-label"] or "")[0]
            areas[name] = (float(style["width"]) + 2) * (float(style["height"]) + 2)
    whole = sum(areas.values())
    assert {name: round(area / whole, 2) for name, area in areas.items()} == {
        "a": 0.6,
        "b": 0.3,
        "c": 0.1,
    }


@pytest.mark.slow
def test_the_history_of_a_run_is_drawn(
    browse: Browse, cli: Run, run_directory: Path, tmp_path: Path
) -> None:
    cli("report", run_directory, "-o", "report.html")
    dom = browse(tmp_path / "report.html", "", "--blink-settings=preferredColorScheme=0")
    assert re.findall(r'aria-label="([^"]*) by step"', dom) == ["size on disk", "loss"]
    assert dom.count('class="dot"') == 2 * 3 + 2  # and one each to point with
    steps = text_of(dom, "steps")
    assert steps.index("0.25") < steps.index("0.5")  # the newest first
    assert "pinned" in steps


@pytest.mark.slow
def test_fifty_thousand_leaves_are_a_page_like_any_other(browse: Browse, tmp_path: Path) -> None:
    tree = {f"m{i}": {f"w{j}": np.full(1, i) for j in range(100)} for i in range(500)}
    ocp.save(tmp_path / "many", tree)
    write_report(tmp_path / "many", tmp_path / "report.html", statistics=False)
    dom = browse(tmp_path / "report.html", "#sort=-shown")
    assert "50,000 leaves" in dom
    assert rows_of(dom)[0] == "m99/w99"
    assert len(rows_of(dom)) < 200
    assert dom.count("<div") < 6000
    dom = browse(tmp_path / "report.html", "#search=m123/w45")
    assert rows_of(dom) == ["m123/w45"]
