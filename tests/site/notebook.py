"""The quickstart as a notebook, made from its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "quickstart.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")

SETUP = """\
import importlib.util
import os
import tempfile

if importlib.util.find_spec("orbit_ckpt") is None:
    %pip install -q orbit-ckpt
os.chdir(tempfile.mkdtemp())  # for the checkpoints of this notebook
"""
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$\n*", re.DOTALL | re.MULTILINE)


def make_notebook(page: str, site: str) -> str:
    """Return a notebook, as JSON, whose cells are the text and the Python blocks of a page.

    Args:
        page: The page. A `text` block is what the Python block before it prints.
        site: The address of the documentation, for relative links.
    """
    page = re.sub(
        r" \[Run this page as a notebook\].*?\.$", "", page, flags=re.DOTALL | re.MULTILINE
    )
    page = re.sub(r"^\[colab\]:.*\n\n", "", page, flags=re.MULTILINE)
    cells: list[dict[str, object]] = []
    parts = BLOCK.split(page)
    for text, kind, code in zip(parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True):
        if text.strip():
            cells.append(_cell("markdown", _with_absolute_links(text.strip(), site)))
        if kind == "python":
            cells.append(_cell("code", code.strip()))
        elif kind == "text":
            output = {"name": "stdout", "output_type": "stream", "text": _lines(code)}
            cells[-1]["outputs"] = [output]
    cells.insert(1, _cell("code", SETUP.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    document = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, source: str) -> dict[str, object]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": _lines(source), **code}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _with_absolute_links(text: str, site: str) -> str:
    def absolute(link: re.Match[str]) -> str:
        page = (PAGE.parent / link[1]).resolve().relative_to(ROOT / "docs").with_suffix("")
        return f"]({site}{page}/{link[2] or ''})"

    return re.sub(r"\]\(([\w./-]+\.md)(#[\w-]+)?\)", absolute, text)
