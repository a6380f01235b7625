"""How a stored tree looks after rules."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.pytree.restore.transformed import nodes_by_source
from orbit_ckpt._src.transform.nodes import Apply, Read, sources_of
from orbit_ckpt.transform import Rename

SOURCES = st.lists(st.sampled_from("abcdef"), max_size=3)


@given(st.lists(SOURCES, max_size=8))
def test_groups_share_no_source_and_cannot_be_divided(inputs: list[list[str]]) -> None:
    nodes = {
        (str(index),): Apply("f", max, tuple(Read((name,)) for name in names))
        for index, names in enumerate(inputs)
    }
    groups = nodes_by_source(nodes)
    assert sorted(names for group in groups for names in group) == sorted(nodes)
    used = [{r.names for node in group.values() for r in sources_of(node)} for group in groups]
    assert not any(one & other for one, other in combinations(used, 2))
    for group in groups:
        (_, first), *others = group.items()
        reached = {read.names for read in sources_of(first)}
        rest = [{read.names for read in sources_of(node)} for _, node in others]
        while near := [sources for sources in rest if sources & reached]:
            reached = reached.union(*near)
            rest = [sources for sources in rest if sources not in near]
        assert not rest


def test_leaves_may_exchange_their_names(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": np.arange(2), "b": np.arange(3)})
    rules = [Rename("a", "c"), Rename("b", "a"), Rename("c", "b")]
    found = ocp.load(tmp_path / "x", transforms=rules)
    assert {name: value.shape for name, value in found.items()} == {"a": (3,), "b": (2,)}
