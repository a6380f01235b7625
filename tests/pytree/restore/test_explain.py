"""A restore can be looked at before it runs, and told of afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt.errors import CorruptionError, TreeMismatchError
from tests.support import LAYOUTS, assert_same_tree, checkpointer, make_mesh, put

NOISE = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
TREE: dict[str, Any] = {
    "params": {"layers_0": {"w": NOISE}, "layers_1": {"w": NOISE + 1}},
    "mu": put(NOISE, "x", None, x=8),
    "step": 7,
    "name": "run",
    "none": None,
}
RULES = [
    tf.Stack("params/layers_*/**", r"params/layers/\2"),
    tf.Rename("mu", "nu"),
]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    ocp.save(tmp_path / "saved", TREE)
    return tmp_path / "saved"


def actions(plan: ocp.RestorePlan) -> dict[str, tuple[str, ...]]:
    return {leaf.name: leaf.actions for leaf in plan.leaves}


@pytest.mark.parametrize("name", ["lazy", "map_leaf", "report", "onyl"])
def test_plan_refuses_what_is_no_option_of_a_plan(saved: Path, name: str) -> None:
    options: dict[str, Any] = {name: None}
    with pytest.raises(TypeError, match=f"plan.* unexpected keyword argument '{name}'"):
        ocp.plan(saved, **options)


def test_plan_says_what_becomes_of_every_leaf(saved: Path) -> None:
    sharding = NamedSharding(make_mesh(x=4), PartitionSpec("x"))
    like = {
        "params": {"layers": {"w": jax.ShapeDtypeStruct((2, 64, 64), jnp.bfloat16)}},
        "nu": jax.ShapeDtypeStruct((64, 64), jnp.float16, sharding=sharding),
        "step": ocp.PLACEHOLDER,
        "ema": np.zeros(2),
        "beta": np.zeros(3),
    }
    plan = ocp.plan(
        saved,
        like,
        transforms=RULES,
        missing="target",
        unexpected="ignore",
        fallback={"beta": np.ones(3)},
    )
    assert actions(plan) == {
        "beta": ("fallback",),
        "ema": ("target",),
        "nu": ("rename", "cast float32 -> float16", "reshard"),
        "params/layers/w": ("stack", "cast float32 -> bfloat16"),
        "step": ("skip",),
    }
    stacked = next(leaf for leaf in plan.leaves if leaf.name == "params/layers/w")
    assert stacked.sources == ("params/layers_0/w", "params/layers_1/w")
    assert (stacked.shape, stacked.dtype) == ((2, 64, 64), jnp.bfloat16)
    assert plan.restored == ("nu", "params/layers/w")
    assert plan.ignored == ("name", "step")


def test_plan_prints_a_table(saved: Path) -> None:
    lines = str(ocp.plan(saved, transforms=RULES, skip="name")).splitlines()
    assert lines[0].split() == ["target", "source", "action", "shape", "bytes", "read", "over-read"]
    row = next(line for line in lines if line.startswith("nu"))
    assert row.split()[:4] == ["nu", "mu", "rename", "float32[64,"]
    assert "3 of 3 leaves from the checkpoint; 1 of its leaves not read" in lines


def test_long_tables_are_cut(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {str(i): i for i in range(200)})
    plan = ocp.plan(tmp_path / "x")
    assert len(plan.leaves) == 200
    assert "... and 164 more leaves" in str(plan)
    assert len(str(plan).splitlines()) == 40


@pytest.mark.parametrize("options", LAYOUTS)
def test_plan_and_metadata_read_no_chunk(saved: Path, options: dict[str, Any]) -> None:
    checkpointer(**options).save(
        saved, args=ocp.args.PyTreeSave(TREE | {"lost": NOISE}), force=True
    )
    if options["use_ocdbt"]:
        chunks = [v for k, v in read_index(saved).items() if k.startswith("lost/")]
        extents = [value for value in chunks if isinstance(value, Extent)]
    else:
        files = [file for file in (saved / "lost").rglob("*") if file.is_file()]
        found = [file for file in files if file.name not in ("zarr.json", ".zarray")]
        extents = [Extent(str(file), 0, file.stat().st_size) for file in found]
    for extent in extents:
        with open(extent.file, "r+b") as file:
            file.seek(extent.offset)
            file.write(b"?" * extent.length)
    with pytest.raises(CorruptionError):
        ocp.load(saved, only="lost")
    described: Any = ocp.metadata(saved).tree
    assert described["lost"].shape == NOISE.shape
    plan = ocp.plan(saved, only="lost")
    assert plan.bytes_read > 0
    assert plan.leaves[0].over_read == 1.0


def test_over_read_is_what_a_part_costs_more(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"w": jnp.asarray(NOISE)})
    sharding = NamedSharding(make_mesh(x=8), PartitionSpec("x"))
    like = {"w": jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=sharding)}
    whole = ocp.plan(tmp_path / "x")
    split = ocp.plan(tmp_path / "x", like)
    assert whole.leaves[0].over_read == split.leaves[0].over_read == 1.0
    assert split.bytes_read == whole.bytes_read
    cut = {"w": jax.ShapeDtypeStruct((8, 64), jnp.float32)}
    part = ocp.plan(tmp_path / "x", cut, strict=False)
    assert part.leaves[0].over_read == 8.0
    assert part.bytes_read == whole.bytes_read


def test_bytes_are_those_of_what_is_wanted(tmp_path: Path) -> None:
    tree = {str(i): np.random.default_rng(i).bytes(100_000) for i in range(10)}
    ocp.save(tmp_path / "x", tree)
    whole = ocp.plan(tmp_path / "x").bytes_read
    assert 1_000_000 <= whole < 1_010_000
    assert ocp.plan(tmp_path / "x", only="3").bytes_read * 10 == whole


def test_source_of_several_leaves_is_counted_once(saved: Path) -> None:
    rules = [tf.Split("mu", ("a", "b"), axis=0)]
    plan = ocp.plan(saved, transforms=rules, only="*")
    first, second = (leaf for leaf in plan.leaves if leaf.name in "ab")
    assert (first.actions, second.actions) == (("split",), ("split",))
    assert first.bytes_read > 0
    assert second.bytes_read == 0


def test_parts_of_one_result_have_all_its_sources_which_are_counted_once(tmp_path: Path) -> None:
    tree = {f"l_{i}": {"w": np.full(4, i, np.float32)} for i in range(3)}
    ocp.save(tmp_path / "x", tree)
    rules = [tf.Stack("l_*/w", "w"), tf.Unstack("w", r"k_\g<i>/w")]
    plan = ocp.plan(tmp_path / "x", transforms=rules)
    names = tuple(f"l_{i}/w" for i in range(3))
    assert [leaf.sources for leaf in plan.leaves] == [names] * 3
    assert [leaf.actions for leaf in plan.leaves] == [("stack", "unstack")] * 3
    assert [leaf.bytes_read > 0 for leaf in plan.leaves] == [True, False, False]
    assert plan.bytes_read == ocp.plan(tmp_path / "x").bytes_read


def test_values_that_are_used_again_and_again_are_told_of_once(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": np.ones(2, np.float32)})
    rules = [tf.Copy("a", "b"), tf.Combine(("a", "b"), "a", lambda x, y: (x + y) / 2)] * 60
    (leaf,) = ocp.plan(tmp_path / "x", transforms=rules).leaves  # not 2**60 steps
    assert (leaf.sources, leaf.actions) == (("a",), ("combine",))
    assert ocp.load(tmp_path / "x", transforms=rules)["a"].tolist() == [1, 1]


def test_load_reports_what_was_done(saved: Path) -> None:
    tree, report = ocp.load(saved, transforms=RULES, report=True)
    assert_same_tree(tree, ocp.load(saved, transforms=RULES))
    assert str(report) == str(ocp.plan(saved, transforms=RULES))
    assert report.with_action("rename") == ("nu",)


def test_plan_of_what_does_not_fit_is_the_error_of_the_load(saved: Path) -> None:
    with pytest.raises(TreeMismatchError, match=r"missing in the checkpoint:\n +steps"):
        ocp.plan(saved, {"steps": 1})


def test_shapes_of_computed_leaves_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    checkpointer(use_ocdbt=False).save(path, args=ocp.args.PyTreeSave(TREE))
    for file in path.rglob("c/0/0"):
        file.unlink()
    like = {"params": {"layers": {"w": jax.ShapeDtypeStruct((3, 64, 64), jnp.float32)}}}
    with pytest.raises(TreeMismatchError, match=r"params.layers.w: shape \(3, 64, 64\) wanted, "):
        ocp.load(path, like, transforms=RULES, unexpected="ignore")


def test_plan_shows_what_is_done_with_a_fallback(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": np.ones(2)})
    plan = ocp.plan(tmp_path / "x", fallback={"b": np.ones(3)}, cast=np.float16)
    (leaf,) = [leaf for leaf in plan.leaves if leaf.name == "b"]
    assert leaf.actions == ("fallback", "cast float64 -> float16")
    assert (leaf.shape, leaf.dtype, leaf.bytes_read) == ((3,), np.float16, 0)
