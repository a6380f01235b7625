"""T5X's assignment maps and eFormer's partition rules, given as they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf
from orbit_ckpt.errors import TransformError
from tests.support import make_mesh

MESH = make_mesh(data=2, model=4)
LARGE, SMALL = (512, 1024), (8, 8)
EFORMER = [("mlp/(gate|up)/kernel", P(None, "model")), ("norm", P("data")), (".*", P())]


def zeros(shape: tuple[int, ...]) -> jax.Array:
    return jnp.zeros(shape, jnp.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "saved"
    tree = {
        "params": {"mlp": {"gate": {"kernel": zeros(LARGE)}}, "norm": zeros((4,))},
        "opt": {"mlp": {"gate": {"kernel": {"m": zeros(LARGE), "nu": zeros(LARGE)}}}},
        "head": {"kernel": zeros(LARGE), "bias": zeros(SMALL)},
    }
    ocp.save(path, tree)
    return path


def specs(tree: Any) -> dict[str, P]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(k, simple=True, separator="/"): v.sharding.spec for k, v in flat}


def test_rules_that_are_searched_for_also_match_what_the_optimizer_keeps(saved: Path) -> None:
    shardings = tf.partition(MESH, EFORMER, match="search")
    found = specs(ocp.load(saved, sharding=shardings))
    sharded = {name for name, spec in found.items() if spec == P(None, "model")}
    assert sharded == {
        "params/mlp/gate/kernel",
        "opt/mlp/gate/kernel/m",
        "opt/mlp/gate/kernel/nu",
    }
    assert found["params/norm"] == P("data")
    assert found["head/bias"] == P()


@pytest.mark.parametrize(
    ("rule", "matches", "others"),
    [
        ("kernel$", ["a/kernel", "kernel"], ["a/kernel/m"]),
        ("^kernel", ["kernel/m"], ["a/kernel"]),
        ("a|b", ["xa", "b"], ["c"]),
        ("(?i)KERNEL", ["a/kernel/m"], ["a"]),
        (re.compile("KERNEL", re.IGNORECASE), ["a/kernel/m"], ["a"]),
        ("", ["a/b"], []),
    ],
)
def test_a_rule_is_searched_for_as_re_search_does(
    rule: str, matches: list[str], others: list[str]
) -> None:
    (pattern,) = tf.partition(MESH, [(rule, P())], match="search")
    assert isinstance(pattern, re.Pattern)
    for name in [*matches, *others]:
        assert bool(pattern.fullmatch(name)) is bool(re.search(rule, name)) is (name in matches)


def test_what_match_is_and_broken_expressions_are_errors() -> None:
    with pytest.raises(ValueError, match="match is 'find'; give one of 'name', 'search'"):
        tf.partition(MESH, EFORMER, match="find")  # pyright: ignore[reportArgumentType] - wrong
    with pytest.raises(ValueError, match=r"'\(' is not a valid regular expression: .*Correct it"):
        tf.partition(MESH, [("(", P())], match="search")


def test_large_arrays_left_to_the_last_rule_are_named_in_one_line(
    saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ocp.load(saved, sharding=tf.partition(MESH, EFORMER, match="search"))
    (record,) = caplog.records
    assert "1 arrays of 1 MiB or more" in record.message
    assert "head/kernel" in record.message
    assert "mlp" not in record.message
    caplog.clear()
    rules = {"params/**": P(), "**/kernel": P("data"), "**": P()}
    ocp.load(saved, sharding=tf.partition(MESH, rules))
    (record,) = caplog.records
    assert "2 arrays of 1 MiB or more" in record.message
    assert "opt/mlp/gate/kernel/m, opt/mlp/gate/kernel/nu" in record.message


@pytest.mark.parametrize(
    "sharding",
    [
        NamedSharding(MESH, P()),
        tf.partition(MESH, {"**": P()}),
        tf.partition(MESH, {"head/kernel": P(), "**": P("data")}),
        {"head/bias": jax.devices()[0], "**": jax.devices()[0]},
    ],
    ids=["one", "one rule", "sharded", "one device"],
)
def test_what_is_replicated_on_purpose_is_not_logged(
    sharding: Any, saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ocp.load(saved, sharding=sharding)
    assert not caplog.records


@pytest.mark.parametrize(
    "call",
    [
        lambda p: ocp.load(p, sharding=tf.partition(MESH, EFORMER)),
        lambda p: ocp.load(p, sharding=tf.partition(MESH, {"**": P(), r"\w+/kernel": P()})),
        lambda p: ocp.load(p, only=r"params/.*"),
        lambda p: ocp.load(p, transforms=[tf.Drop("opt/.*", allow_unused=True)]),
        lambda p: ocp.load(p, ocp.load(p), transforms=[tf.AssignmentMap([("x/(.*)", None)])]),
        lambda p: ocp.load(
            p, ocp.load(p), transforms=[tf.AssignmentMap([("x/.*", None)], require_all=False)]
        ),
    ],
    ids=["partition", "with others", "only", "Drop", "AssignmentMap", "not all"],
)
def test_expressions_in_strings_are_refused_with_what_to_give(
    call: Callable[[Path], object], saved: Path
) -> None:
    advice = r"regular expression.*re\.compile\(.*from_t5x\(.*match='search'"
    with pytest.raises(TransformError, match=advice):
        call(saved)


def test_a_template_for_an_expression_in_a_string_is_refused_with_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"refers to \\2, .*from_t5x"):
        tf.AssignmentMap([(r"a/(\d+)/(.*)", r"b/\1/\2")])


def test_rules_without_a_match_say_how_those_of_eformer_are_given(saved: Path) -> None:
    with pytest.raises(TransformError, match=r"no pattern matches .* match='search'"):
        ocp.load(saved, sharding=tf.partition(MESH, {"kernel": P()}))


def test_names_with_such_signs_are_patterns_of_themselves(tmp_path: Path) -> None:
    names = ["a.+", ".*b", "c(d|e)", "^f$", r"g\d", "h[0-9]"]
    ocp.save(tmp_path / "odd", {name: i for i, name in enumerate(names)})
    assert ocp.load(tmp_path / "odd", only=names) == {name: i for i, name in enumerate(names)}


OLD = {
    "target": {"enc": {"l0": {"w": np.ones(2)}, "l1": {"w": np.full(2, 2)}}},
    "step": np.ones(()),
}
NEW = {
    "target": {"dec": {"b0": {"w": np.zeros(2)}, "b1": {"w": np.zeros(2)}}},
    "step": np.zeros(()),
}
MAP = [(r"target/dec/b(\d+)/(.*)", r"target/enc/l\1/\2"), (r"step", None)]


@pytest.mark.parametrize("form", ["values", "fallback"])
def test_an_assignment_map_of_t5x_is_applied_as_it_is(tmp_path: Path, form: str) -> None:
    ocp.save(tmp_path / "old", OLD)
    like: Any = NEW if form == "values" else jax.eval_shape(lambda: jax.tree.map(jnp.asarray, NEW))
    given: Any = {} if form == "values" else {"fallback": NEW}
    found = ocp.load(tmp_path / "old", like, transforms=[tf.from_t5x(MAP)], cast="unsafe", **given)
    assert np.asarray(found["target"]["dec"]["b1"]["w"]).tolist() == [2, 2]
    assert found["step"] == 0  # None: the initial value stays


def test_assignments_may_be_rotated_and_groups_be_named_by_number(tmp_path: Path) -> None:
    ocp.save(tmp_path / "old", {"a1": 1, "a2": 2})
    rule = tf.from_t5x([("a1", "a2"), (r"(a)2", r"\g<1>1")])
    assert ocp.load(tmp_path / "old", {"a1": 0, "a2": 0}, transforms=[rule]) == {"a1": 2, "a2": 1}


def test_unused_patterns_are_an_error_unless_t5x_would_accept_them(tmp_path: Path) -> None:
    ocp.save(tmp_path / "old", {"a": 1})
    rules = [("a", "a"), ("b.*", "a")]
    with pytest.raises(TransformError, match=r"Unused patterns in `assignment_map`: \['b\.\*'\]"):
        ocp.load(tmp_path / "old", {"a": 0}, transforms=[tf.from_t5x(rules)])
    rule = tf.from_t5x(rules, require_all_rules_match=False)
    assert ocp.load(tmp_path / "old", {"a": 0}, transforms=[rule]) == {"a": 1}


def test_a_map_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="assignment_map must be a dict or a list of pairs"):
        tf.from_t5x(3)  # pyright: ignore[reportArgumentType] - the mistake
    with pytest.raises(ValueError, match=r"not a valid regular expression"):
        tf.from_t5x([("a(", "b")])
