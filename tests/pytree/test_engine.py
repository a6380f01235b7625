"""The engine that item handlers, functions and commands share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.pytree.engine import TreeIO
from orbit_ckpt._src.pytree.restore.target import RestoreOptions
from tests.support import assert_same_tree

TREE = {"w": np.arange(6.0).reshape(2, 3), "step": 3, "pair": (1, 2)}


def save(trees: TreeIO, directory: Path, tree: object) -> None:
    async def both_phases() -> None:
        commit = await trees.stage(directory, tree, copy=False)
        await commit.run()
        commit.finalize()

    directory.mkdir()
    asyncio.run(both_phases())


def test_a_tree_that_the_engine_saves_comes_back(tmp_path: Path) -> None:
    save(TreeIO(), tmp_path / "x", TREE)
    assert_same_tree(TreeIO().restore(tmp_path / "x", RestoreOptions()), TREE)


def test_without_rich_types_a_tuple_comes_back_as_a_list(tmp_path: Path) -> None:
    save(TreeIO(), tmp_path / "x", TREE)
    plain = cast(dict[str, Any], TreeIO(rich_types=False).restore(tmp_path / "x", RestoreOptions()))
    assert plain["pair"] == [1, 2]


def test_the_report_of_a_restore_is_its_plan(tmp_path: Path) -> None:
    save(TreeIO(), tmp_path / "x", TREE)
    options = RestoreOptions(only="w")
    tree, report = TreeIO().restore_and_explain(tmp_path / "x", options)
    assert_same_tree(tree, {"w": TREE["w"]})
    assert report == TreeIO().explain(tmp_path / "x", options)


def test_metadata_of_a_tree_cannot_be_saved(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", TREE)
    with pytest.raises(ValueError, match="Cannot save TreeMetadata"):
        ocp.save(tmp_path / "y", ocp.metadata(tmp_path / "x"))
    assert not (tmp_path / "y").exists()
