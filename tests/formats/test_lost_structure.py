"""Checkpoints without `_METADATA`: what is stored comes back, and what may be missing is said."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from tests.support import LAYOUTS, assert_same_tree, checkpointer

TREE = {
    "a": np.arange(3),
    "s": "text",
    "empty": {},
    "none": None,
    "list": [],
    "below": {"t": "x/y", "a/b": np.arange(4), "c": {"d": "q", "k/1": "slash"}},
    "n": 3,
}
STORED = {
    "a": np.arange(3),
    "s": "text",
    "below": {"t": "x/y", "a/b": np.arange(4), "c": {"d": "q", "k/1": "slash"}},
    "n": np.array(3),
}


@pytest.fixture(params=LAYOUTS)
def lost(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a checkpoint as Orbax writes it, without manifests, that has lost `_METADATA`."""
    checkpointer(rich_types=False, **request.param).save(tmp_path / "c", TREE)
    for file in ("_METADATA", "orbit_manifest.json", "orbit_tree.json"):
        (tmp_path / "c" / file).unlink(missing_ok=True)
    return tmp_path / "c"


@pytest.mark.parametrize("how", ["load", "checkpointer", "metadata", "lazy"])
def test_arrays_and_strings_come_back_with_a_warning_of_what_may_be_missing(
    lost: Path, how: str
) -> None:
    readers: dict[str, Any] = {
        "load": ocp.load,
        "checkpointer": ocp.StandardCheckpointer().restore,
        "metadata": lambda path: ocp.metadata(path).tree,
        "lazy": lambda path: ocp.load(path, lazy=True),
    }
    with pytest.warns(UserWarning, match=r"no _METADATA.*None.*missing.*Give a target") as caught:
        found = readers[how](lost)
    assert caught[0].filename == __file__
    assert sorted(found) == sorted(STORED)
    if how in ("load", "checkpointer"):
        assert_same_tree(found, STORED)


def test_a_target_gives_the_structure_back(lost: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_tree(ocp.load(lost, like=TREE), TREE)


def test_verify_says_that_the_structure_is_lost(lost: Path) -> None:
    report = ocp.verify(lost)
    assert not report.is_intact
    assert any("there is no _METADATA" in str(damage) for damage in report.damage)
