"""The page about a checkpoint: in one file, safe whatever leaves are called, alive in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow

NASTY = "</script><img src=x onerror=document.title=1>"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


class Elements(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    ocp.save(
        tmp_path / "nasty",
        {
            NASTY: np.ones(3000, np.float32),
            "a": {"kernel": np.arange(12.0).reshape(3, 4), "bias": np.array([1.0, np.nan])},
            "b": {"kernel": np.full((10, 10), 7, np.int32)},
            "@DATA@": "text",
        },
    )
    return tmp_path / "nasty"


def test_the_page_of_a_run_has_its_steps_and_the_leaves_of_the_newest(
    cli: Run, run_directory: Path, tmp_path: Path
) -> None:
    printed = cli("report", run_directory, "-o", "report.html", "--json").json
    page = (tmp_path / "report.html").read_text()
    assert printed["bytes"] == len(page.encode())
    data = data_of(page)
    assert [step["step"] for step in data["steps"]] == [10, 20, 30]
    assert data["steps"][1]["metrics"] == {"loss": 0.25}
    leaves = {leaf["name"]: leaf for leaf in data["leaves"]}
    assert leaves["opt_state/0"]["mean"] == 30
    assert leaves["odd"]["nans"] == 1
    assert "30, the newest of 3 steps: 13 leaves" in data["summary"]


def test_the_page_is_one_file_that_fetches_nothing(cli: Run, nasty: Path, tmp_path: Path) -> None:
    cli("report", nasty, "-o", "report.html", "--no-stats")
    page = (tmp_path / "report.html").read_text()
    tags = Elements(page).tags
    assert not [tag for tag, attrs in tags if {"src", "href", "data"} & attrs.keys()]
    assert "img" not in [tag for tag, _ in tags]
    policy = next(a["content"] for _, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert page.count("</script>") == 2
    leaves = {leaf["name"]: leaf for leaf in data_of(page)["leaves"]}
    assert set(leaves) == {NASTY.replace("/", "/"), "a/kernel", "a/bias", "b/kernel", "@DATA@"}
    assert "min" not in leaves["a/kernel"]
    assert data_of(page)["steps"] is None


def text_of(dom: str, element: str) -> str:
    found = re.search(rf'<(\w+) id="{element}"[^>]*>(.*?)</\1>', dom, re.DOTALL)
    assert found is not None, element
    return re.sub(r"<[^>]*>", " ", found[2])


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_works_in_a_browser(cli: Run, nasty: Path, tmp_path: Path) -> None:
    def browse(fragment: str) -> str:
        assert CHROMIUM is not None
        done = subprocess.run(
            [
                *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
                *("--virtual-time-budget=3000", "--enable-logging=stderr", "--v=0"),
                f"--user-data-dir={tmp_path / 'profile'}",
                (tmp_path / "report.html").as_uri() + fragment,
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "CONSOLE" not in done.stderr, done.stderr  # errors, or what the policy refused
        return done.stdout

    cli("report", nasty, "-o", "report.html")
    dom = browse("")
    assert f"<title>{nasty}</title>" in dom
    assert "<img" not in dom
    assert text_of(dom, "count").startswith("5 of 5 leaves")
    assert "&lt;/script&gt;&lt;img src=x" in dom
    assert dom.count("<tr>") == 6
    assert 'aria-label="a: 112 B, ' in dom  # a tile of the treemap
    assert 'class="n bad">1<' in dom  # the NaN
    found = text_of(browse("#q=kernel&sort=max&down=1"), "leaves")
    assert found.index("a/kernel") < found.index("b/kernel")
    assert "bias" not in found
    found = text_of(browse("#q=kernel&sort=max"), "leaves")
    assert found.index("b/kernel") < found.index("a/kernel")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_history_of_a_run_is_drawn(cli: Run, run_directory: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    cli("report", run_directory, "-o", "report.html")
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--virtual-time-budget=3000", f"--user-data-dir={tmp_path / 'profile'}"),
            (tmp_path / "report.html").as_uri(),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.count("<polyline") == 2  # sizes and losses
    assert "pinned" in text_of(done.stdout, "steps")
