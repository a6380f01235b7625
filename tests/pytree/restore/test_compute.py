"""Leaves that are computed: how much memory that takes, and what is read for it."""

from __future__ import annotations

import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays import memory
from orbit_ckpt._src.pytree.restore import compute
from orbit_ckpt.errors import TransformError
from orbit_ckpt.transform import Cast, Copy, Map, Rename, Split, Stack, Transpose, Unstack
from tests.support import assert_same_tree

MB = 1 << 20
DECODER = 3
"""Parts that a thread holds of the blocks of 1 MiB that it decodes."""
PARTS = np.arange(16 * MB // 4, dtype=np.int32).reshape(16, 512, 512) % 1000


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all memory be seen by tracemalloc, and sources be read 1 MB at a time."""
    monkeypatch.setattr(memory, "_MAP_FLAGS", None)
    monkeypatch.setattr(compute, "_BATCH_BYTES", MB)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    ("rules", "expected", "limit"),
    [
        ([Unstack("all", r"\g<i>")], 16, 0.75),
        ([Split("all", tuple(map(str, range(16))), axis=0)], 16, 0.75),
        ([Rename("part/**", r"\1"), Stack("*", "all")], 16, 2.5),
        ([Rename("part/**", r"\1"), Stack("*", "all", axis=1)], 16, 2.5),
        ([Rename("part/**", r"\1"), Transpose("*"), Stack("*", "all")], 16, 4.5),
        ([Rename("part/**", r"\1"), Cast("*", "int16"), Stack("*", "all")], 8, 3.5),
        ([Map("part/*", np.negative)], 16, 2.5),
        ([Unstack("all", r"\g<i>"), Map("1", np.negative)], 16, 1.5),
    ],
)
def test_results_and_a_few_parts_are_held(
    tmp_path: Path, kind: Any, rules: list[Any], expected: int, limit: float
) -> None:
    """All figures are in parts, which have 1 MB."""
    tree = (
        {"all": kind(PARTS)}
        if rules[0].pattern == "all"
        else {"part": {str(i): kind(part) for i, part in enumerate(PARTS)}}
    )
    ocp.save(tmp_path / "x", tree)
    ocp.load(tmp_path / "x", transforms=rules)  # what is imported and cached once
    tracemalloc.start()
    try:
        found = ocp.load(tmp_path / "x", transforms=rules)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(found)) == expected * MB
    assert peak < (expected + limit + DECODER) * MB


def test_a_part_that_is_wanted_alone_does_not_keep_the_others(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": np.arange(6).reshape(3, 2)})
    rules = [Unstack("a", r"a/\g<i>")]
    whole = ocp.load(tmp_path / "x", transforms=rules)["a"]
    assert whole["0"].base is not None
    assert not np.may_share_memory(whole["0"], whole["1"])
    alone = ocp.load(tmp_path / "x", transforms=rules, only="a/1")["a"]["1"]
    assert alone.base is None
    assert alone.tolist() == [2, 3]


def test_sources_are_forgotten_as_they_are_used(tmp_path: Path) -> None:
    used: list[weakref.ref[np.ndarray]] = []

    def double(value: np.ndarray) -> np.ndarray:
        assert all(reference() is None for reference in used)
        used.append(weakref.ref(value))
        return value * 2

    ocp.save(tmp_path / "x", {str(i): np.full(2, i) for i in range(5)})
    found = ocp.load(tmp_path / "x", transforms=[Map("*", double)])
    assert [value.tolist() for value in found.values()] == [[2 * i] * 2 for i in range(5)]


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_stacks_are_the_same_however_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    monkeypatch.setattr(compute, "_BATCH_BYTES", batch_bytes)
    w = [jnp.arange(6.0).reshape(2, 3) + i for i in range(3)]
    b = [np.array([i, 1], np.int8) for i in range(3)]
    keys = jax.random.split(jax.random.key(1), 3)
    layers = {str(i): {"w": w[i], "b": b[i], "k": keys[i]} for i in range(3)}
    ocp.save(tmp_path / "x", {"layers": layers})
    rules = [
        Transpose("layers/*/w"),
        Copy("layers/*/w", r"again/\1"),
        Stack("layers/*/**", r"\2", axis=-1),
        Cast("b", "float32"),
        Stack("again/*", "again"),
        Map("again", lambda value: value + 1),
    ]
    expected = {
        "w": jnp.stack([each.T for each in w], -1),
        "b": np.stack(b, -1).astype(np.float32),
        "k": keys,
        "again": jnp.stack([each.T for each in w]) + 1,
    }
    assert_same_tree(ocp.load(tmp_path / "x", transforms=rules), expected)


def test_what_is_no_array_is_not_stacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_BATCH_BYTES", 1)
    ocp.save(tmp_path / "x", {"0": b"ab", "1": b"cd"})  # is stored as an array
    with pytest.raises(TransformError, match="all: stack of b'ab' failed: TypeError: bytes is no"):
        ocp.load(tmp_path / "x", transforms=[Stack("*", "all")])
