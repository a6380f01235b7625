"""Pages outside the reference: the landing page, troubleshooting, and addresses."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import orbit_ckpt
from orbit_ckpt import errors
from orbit_ckpt._src.errors import TROUBLESHOOTING
from tests.programs import run_script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SITE, REPOSITORY = PROJECT["urls"]["Documentation"], PROJECT["urls"]["Repository"]
TOP = [ROOT / name for name in ("README.md", "CITATION.cff", "SECURITY.md", "mkdocs.yml")]


@pytest.mark.slow
def test_the_example_of_the_landing_page_trains_and_resumes(tmp_path: Path) -> None:
    (example,) = re.findall(
        r"^```python\n(.*?)^```$", (DOCS / "index.md").read_text(), re.DOTALL | re.MULTILINE
    )
    script = tmp_path / "example.py"
    for last in (120, 501):
        script.write_text(example.replace("501", str(last)) + "print(run.all_steps())\n")
        done = run_script(script, directory=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{[last - 3, last - 2, last - 1]}\n"


def test_every_error_has_a_section_that_errors_link() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    sections = dict(re.findall(r"^#+ (\w+) \{ #(\w+) \}$", page, re.MULTILINE))
    assert sections.pop("Troubleshooting") == "CheckpointError"
    assert all(title == anchor for title, anchor in sections.items())
    assert sections.keys() == set(errors.__all__) - {"CheckpointError"}
    assert f"{SITE}troubleshooting/" == TROUBLESHOOTING


def test_addresses_agree() -> None:
    for page in TOP:
        addresses = re.findall(r"https?://[\w./-]*orbit[\w./-]*", page.read_text())
        assert addresses
        for address in addresses:
            raw = address.replace("raw.githubusercontent.com", "github.com")
            assert raw.startswith((SITE, REPOSITORY)), f"{page.name}: {address}"


def test_links_of_the_readme_work_on_every_site_that_shows_it() -> None:
    page = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(links) > 10
    for link in links:
        assert link.startswith("https://"), link
        file = re.sub(r"^.*?/(?:blob/)?main/", "", link) if "/main/" in link else None
        rest, _, _ = link.removeprefix(SITE).partition("#")
        path = ROOT / file if file else DOCS / f"{rest.rstrip('/') or 'index'}.md"
        assert path.is_file(), link


def test_the_version_that_people_cite_is_this_one() -> None:
    assert f"\nversion: {orbit_ckpt.__version__}\n" in (ROOT / "CITATION.cff").read_text()
