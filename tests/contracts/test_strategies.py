"""The shipped strategies draw what the library takes, and damage that it notices."""

from __future__ import annotations

import contextlib
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointError, TransformError
from orbit_ckpt.testing.rule_strategies import rule_lists
from orbit_ckpt.testing.strategies import damage, random_keys
from orbit_ckpt.transform import Rule
from tests.support import assert_same_tree, scratch

TREE = {"layer_0": {"w": np.arange(4.0)}, "layer_1": {"w": np.arange(4.0)}, "step": 3}
NAMES = ["layer_0/w", "layer_1/w", "step"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "checkpoint"
    ocp.save(path, TREE)
    return path


@given(random_keys())
def test_drawn_random_keys_round_trip(key: jax.Array) -> None:
    with scratch() as path:
        ocp.save(path, {"key": key})
        assert_same_tree(ocp.load(path), {"key": key})


@given(data=st.data())
def test_drawn_damage_is_noticed(saved: Path, data: st.DataObject) -> None:
    with data.draw(damage(saved)).applied(saved), contextlib.suppress(CheckpointError):
        assert_same_tree(ocp.load(saved), TREE)


@given(rules=rule_lists(NAMES))
def test_drawn_rules_fit_or_are_refused_as_rules(saved: Path, rules: list[Rule]) -> None:
    with contextlib.suppress(TransformError):
        ocp.plan(saved, transforms=rules)
