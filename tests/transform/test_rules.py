"""Rules on the way out of a checkpoint: what they make, what they read, what they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.transform.engine import Leaves, PatternRule
from orbit_ckpt._src.transform.nodes import Apply
from orbit_ckpt._src.transform.rules import Node
from orbit_ckpt.errors import TransformError, TreeMismatchError, UnsupportedLeafError
from orbit_ckpt.transform import (
    AssignmentMap,
    Cast,
    Combine,
    Copy,
    Drop,
    Fallback,
    KeyData,
    Map,
    Rename,
    Split,
    Stack,
    Transpose,
    Unstack,
    WrapKeys,
)
from tests.support import assert_same_tree, put


def model(layers: int = 3) -> dict[str, Any]:
    return {
        "params": {
            f"layers_{i}": {
                "w": jnp.arange(6.0).reshape(2, 3) + i,
                "b": np.full(4, i, np.int32),
            }
            for i in range(layers)
        },
        "opt": [jnp.ones(2), {"count": 1}],
        "name": "model",
        "none": None,
    }


class Negate(PatternRule, frozen=True):
    """A rule that is defined elsewhere."""

    allow_unused: bool = False

    @override
    def apply(self, leaves: Leaves) -> None:
        leaves.replace(self.pattern, self.allow_unused, self._node)

    def _node(self, _: str, node: Node) -> Node:
        return Apply("negate", np.negative, (node,))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    ocp.save(tmp_path / "x", model())
    return tmp_path / "x"


def layer(i: int, name: str) -> Any:
    return model()["params"][f"layers_{i}"][name]


CASES: dict[str, tuple[list[Any], Callable[[], Any], Any]] = {
    "rename": (
        [Rename("params/layers_*/**", r"blocks/\1/\2")],
        lambda: {"blocks": {str(i): model()["params"][f"layers_{i}"] for i in range(3)}},
        "blocks/**",
    ),
    "rename, lists stay lists": (
        [Rename("opt/**", r"optimizer/\1")],
        lambda: {"optimizer": model()["opt"]},
        "optimizer/**",
    ),
    "rename by an expression": (
        [Rename(re.compile(r"params/layers_(?P<n>\d)/(w|b)"), r"\g<n>\2")],
        lambda: {f"{i}{n}": layer(i, n) for i in range(3) for n in "wb"},
        re.compile(r"\d[wb]"),
    ),
    "rules run in order": (
        [Rename("name", "a"), Rename("a", "b"), Copy("b", "c")],
        lambda: {"b": "model", "c": "model"},
        re.compile("[bc]"),
    ),
    "drop": (
        [Drop("params/**"), Drop("opt/**")],
        lambda: {"name": "model", "none": None},
        re.compile("n.*"),
    ),
    "map": (
        [Map("params/*/b", lambda b: b * 2), Map("name", str.upper)],
        lambda: {"params": {f"layers_{i}": {"b": layer(i, "b") * 2} for i in range(3)}},
        "params/*/b",
    ),
    "map with names": (
        [Map("params/*/b", lambda _, name: name, with_name=True)],
        lambda: {"params": {f"layers_{i}": {"b": f"params/layers_{i}/b"} for i in range(3)}},
        "params/*/b",
    ),
    "combine": (
        [
            Combine(
                ("params/layers_*/w", r"params/layers_\1/b"),
                r"sum/\1",
                lambda w, b: float(w.sum() + b.sum()),
            )
        ],
        lambda: {
            "sum": {str(i): float(layer(i, "w").sum() + layer(i, "b").sum()) for i in range(3)}
        },
        "sum/*",
    ),
    "split": (
        [Split("params/*/w", (r"q/\1", r"k/\1", r"v/\1"))],
        lambda: {
            name: {f"layers_{i}": layer(i, "w")[:, j : j + 1] for i in range(3)}
            for j, name in enumerate("qkv")
        },
        re.compile("[qkv]/.*"),
    ),
    "stack": (
        [Stack("params/layers_*/**", r"params/layers/\2")],
        lambda: {
            "params": {
                "layers": {
                    "w": jnp.stack([layer(i, "w") for i in range(3)]),
                    "b": np.stack([layer(i, "b") for i in range(3)]),
                }
            }
        },
        "params/**",
    ),
    "stack and unstack": (
        [
            Stack("params/layers_*/**", r"params/layers/\2", axis=1),
            Unstack("params/layers/**", r"params/layers_\g<i>/\1", axis=1),
        ],
        lambda: {"params": model()["params"]},
        "params/**",
    ),
    "transpose": (
        [Transpose("params/*/w")],
        lambda: {"params": {f"layers_{i}": {"w": layer(i, "w").T} for i in range(3)}},
        "params/*/w",
    ),
    "cast": (
        [Cast("params/*/w", "bfloat16")],
        lambda: {
            "params": {f"layers_{i}": {"w": layer(i, "w").astype(jnp.bfloat16)} for i in range(3)}
        },
        "params/*/w",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rules_make(name: str, saved: Path) -> None:
    rules, expected, only = CASES[name]
    assert_same_tree(ocp.load(saved, transforms=rules, only=only), expected())


@pytest.mark.parametrize("name", CASES)
def test_a_target_gives_types_to_what_rules_make(name: str, saved: Path) -> None:
    rules, expected, only = CASES[name]
    wanted = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64) if hasattr(leaf, "dtype") else leaf, expected()
    )
    found = ocp.load(saved, {**wanted, "rest": 0}, transforms=rules, only=only)
    assert_same_tree(found, {**wanted, "rest": 0})


def test_a_rule_is_one_class(saved: Path) -> None:
    found = ocp.load(saved, transforms=[Negate("params/*/b")], only="params/layers_1/b")
    assert_same_tree(found, {"params": {"layers_1": {"b": np.full(4, -1, np.int32)}}})
    with pytest.raises(TransformError, match=r"^Negate\(pattern='x'\): matches none of"):
        ocp.load(saved, transforms=[Negate("x")])


def test_a_rule_without_a_method_names_its_class(saved: Path) -> None:
    with pytest.raises(NotImplementedError, match="PatternRule is no rule"):
        ocp.load(saved, transforms=[PatternRule("name")])


def test_a_renamed_leaf_goes_onto_the_sharding_of_its_target(saved: Path) -> None:
    wanted = put(np.zeros((2, 3), np.float32), "x", x=2)
    found = ocp.load(
        saved,
        {"a": wanted},
        transforms=[Rename("params/layers_1/w", "a"), Drop(re.compile("(?!a$).*"))],
    )
    assert found["a"].sharding == wanted.sharding
    np.testing.assert_array_equal(found["a"], layer(1, "w"))


def test_keys_become_data_and_data_become_keys(tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(3), 4)
    ocp.save(tmp_path / "x", {"typed": keys, "raw": jax.random.key_data(keys)})
    found = ocp.load(tmp_path / "x", transforms=[KeyData("typed"), WrapKeys("raw")])
    assert_same_tree(found, {"typed": jax.random.key_data(keys), "raw": keys})


def test_typed_keys_are_cut_and_turned_as_keys_not_as_their_data(tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(3), (2, 2))
    ocp.save(tmp_path / "x", {"keys": keys, "one": {"0": keys[0], "1": keys[1]}})
    rules = [
        Copy("keys", "split"),
        Split("split", ("split/a", "split/b")),
        Copy("keys", "parts"),
        Unstack("parts", r"parts/\g<i>"),
        Stack("one/*", "stacked"),
        Copy("keys", "kind"),
        Map("kind", lambda value: str(value.dtype)),
        Copy("keys", "cast"),
        Map("cast", lambda value: value),
        Cast("cast", "float32"),
        Transpose("keys"),
    ]
    expected = {
        "keys": keys.T,
        "split": {"a": keys[:, :1], "b": keys[:, 1:]},
        "parts": {"0": keys[0], "1": keys[1]},
        "stacked": keys,
        "kind": "key<fry>",
        "cast": keys,
    }
    assert_same_tree(ocp.load(tmp_path / "x", transforms=rules), expected)


def test_arrays_without_dimensions_stay_arrays(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"jax": jnp.arange(2.0), "numpy": np.arange(2), "one": np.array(3)})
    rules = [Unstack("jax", r"jax/\g<i>"), Unstack("numpy", r"numpy/\g<i>"), Transpose("one")]
    expected = {
        "jax": {"0": jnp.array(0.0), "1": jnp.array(1.0)},
        "numpy": {"0": np.array(0), "1": np.array(1)},
        "one": np.array(3),
    }
    assert_same_tree(ocp.load(tmp_path / "x", transforms=rules), expected)


@pytest.mark.parametrize("first", [[], [Map("**", lambda value: value)]], ids=["read", "computed"])
def test_numbers_are_cast_and_what_is_none_stays(tmp_path: Path, first: list[Any]) -> None:
    tree = {"int": 3, "float": np.float64(2.5), "text": "abc", "none": None, "array": np.arange(2)}
    ocp.save(tmp_path / "x", tree)
    found = ocp.load(tmp_path / "x", transforms=[*first, Cast("**", "float32")])
    array, number = np.arange(2, dtype=np.float32), np.float32(2.5)
    assert_same_tree(found, {**tree, "int": 3.0, "float": number, "array": array})


def test_what_is_cast_can_be_computed_with(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": np.array([0.1]), "none": None, "text": "abc"})
    rules = [Cast("**", "bfloat16"), Cast("a", "float64"), Map("text", str.upper)]
    found = ocp.load(tmp_path / "x", transforms=rules)
    assert_same_tree(found, {"a": np.array([0.10009765625]), "none": None, "text": "ABC"})


@pytest.mark.parametrize("first", [[], [Map("**", lambda value: value)]], ids=["read", "computed"])
def test_integers_that_do_not_fit_are_not_cast(tmp_path: Path, first: list[Any]) -> None:
    ocp.save(tmp_path / "x", {"a": np.array([300])})
    with pytest.raises((TransformError, TreeMismatchError), match="int64 do not fit int8"):
        ocp.load(tmp_path / "x", transforms=[*first, Cast("a", "int8")])


def test_functions_may_change_what_they_are_given(tmp_path: Path) -> None:
    def add_one(value: np.ndarray) -> np.ndarray:
        value += 1
        return value

    ocp.save(tmp_path / "x", {"a": np.arange(3)})
    rules = [
        *(Copy("a", "b"), Copy("a", "c")),
        *(Map("b", add_one), Map("c", add_one), Copy("c", "d"), Map("d", add_one)),
    ]
    found = ocp.load(tmp_path / "x", transforms=rules)
    expected = {name: np.arange(3) + more for name, more in zip("abcd", [0, 1, 1, 2], strict=True)}
    assert_same_tree(found, expected)


def test_a_split_without_a_function_leaves_the_kind_of_array(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": np.arange(2.0)})
    found = ocp.load(tmp_path / "x", transforms=[Split("a", ("a", "b"), on="jax")])
    assert_same_tree(found, {"a": np.zeros(1), "b": np.ones(1)})


def test_copies_of_a_computed_leaf_share_no_memory(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": np.arange(3)})
    rules = [Map("a", lambda value: value * 2), Copy("a", "b")]
    found = ocp.load(tmp_path / "x", transforms=rules)
    found["a"][:] = 0
    assert found["b"].tolist() == [0, 2, 4]


def test_functions_are_given_arrays_of_the_kind_they_ask_for(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"jax": jnp.arange(3), "numpy": np.arange(3, dtype=np.int32)})
    rules = [
        Map("**", lambda value: value + isinstance(value, jax.Array), on="jax"),
        Map("**", lambda value: value + isinstance(value, np.ndarray)),
    ]
    expected = {"jax": jnp.arange(3) + 2, "numpy": np.arange(3, dtype=np.int32) + 2}
    assert_same_tree(ocp.load(tmp_path / "x", transforms=rules), expected)


def test_arrays_that_jax_cannot_hold_stay_those_of_numpy(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": jnp.arange(2), "b": jnp.arange(2)})
    rules = [Map("a", lambda a: a.astype(str)), Map("b", lambda b: b.astype("datetime64[s]"))]
    found = ocp.load(tmp_path / "x", transforms=rules)
    assert found["a"].tolist() == ["0", "1"]
    assert found["b"].dtype == "datetime64[s]"


def test_functions_on_arrays_of_jax_are_not_given_half_of_the_bits(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": np.array([1e300])})
    with pytest.raises(UnsupportedLeafError, match="a: JAX arrays of dtype float64 need 64-bit"):
        ocp.load(tmp_path / "x", transforms=[Map("a", jnp.sqrt, on="jax")])


def test_keys_that_a_cast_leaves_alone_fit_a_target(tmp_path: Path) -> None:
    tree = {"a": jax.random.key(3), "b": jnp.ones(2, jnp.bfloat16)}
    ocp.save(tmp_path / "x", {**tree, "b": jnp.ones(2)})
    assert_same_tree(ocp.load(tmp_path / "x", tree, transforms=[Cast("*", "bfloat16")]), tree)


def test_an_assignment_map_exchanges_names_at_once(saved: Path) -> None:
    target = {"params": model()["params"], "opt": model()["opt"], "name": "mine", "none": None}
    rules = AssignmentMap(
        [
            ("params/layers_0/**", r"params/layers_1/\1"),
            ("params/layers_1/**", r"params/layers_0/\1"),
            ("name", None),
        ]
    )
    found = ocp.load(saved, target, transforms=[Drop("name"), rules])
    assert_same_tree(found["params"]["layers_0"], model()["params"]["layers_1"])
    assert_same_tree(found["params"]["layers_1"], model()["params"]["layers_0"])
    assert_same_tree(found["params"]["layers_2"], model()["params"]["layers_2"])
    assert found["name"] == "mine"


def test_an_assignment_map_that_does_not_fit_says_why_in_the_words_of_t5x(saved: Path) -> None:
    unused = [("name", "name"), ("layer*/**", None), (re.compile(r"opt/(\d)/xu"), None)]
    with pytest.raises(TransformError) as raised:
        ocp.load(saved, model(), transforms=[AssignmentMap(unused)])
    listed = ["layer*/**", r"opt/(\d)/xu"]
    assert f"Unused patterns in `assignment_map`: {listed}" in str(raised.value)
    ocp.load(saved, model(), transforms=[AssignmentMap(unused, require_all=False)])
    missing = "Parameter 'nane' does not exist in restore checkpoint. Must be one of: "
    with pytest.raises(TransformError, match=missing):
        ocp.load(saved, model(), transforms=[AssignmentMap([("name", "nane")])])


def test_leaves_of_the_target_stay_where_a_rule_says_so(saved: Path) -> None:
    target = {**model(), "new": np.full(2, 7)}
    target["name"] = "mine"
    found = ocp.load(saved, target, transforms=[Fallback("new"), Fallback("name")])
    assert_same_tree(found, {**model(), "new": np.full(2, 7), "name": "mine"})


@pytest.mark.parametrize(
    "rule",
    [
        Rename("a0", "b"),
        Copy("**", r"x/\1"),
        Map("a0", str),
        Combine(("c", "a0"), "b", min),
        Split("a0", ("x", "y")),
        Stack("a*", "b"),
        Unstack("a0", r"a/\g<i>"),
        AssignmentMap([("b", "a0")]),
    ],
)
def test_leaves_of_the_target_are_not_changed(tmp_path: Path, rule: Any) -> None:
    ocp.save(tmp_path / "x", {"c": 1})
    with pytest.raises(TransformError, match="uses a0, which an earlier rule takes from the targ"):
        ocp.load(tmp_path / "x", {"a0": 1, "b": 2, "c": 3}, transforms=[Fallback("a0"), rule])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"only": "params/layers_0/**"}, {"params": {"layers_0": model()["params"]["layers_0"]}}),
        ({"skip": "params/**"}, {k: v for k, v in model().items() if k != "params"}),
        ({"only": "opt/**", "skip": "**/count"}, {"opt": [model()["opt"][0]]}),
    ],
)
def test_a_part_is_loaded(saved: Path, given: Any, expected: Any) -> None:
    assert_same_tree(ocp.load(saved, **given), expected)


def test_a_part_of_a_target_is_loaded_and_the_rest_stays(saved: Path) -> None:
    target = jax.tree.map(lambda leaf: leaf, model())
    target["opt"] = "mine"
    found = ocp.load(saved, target, only="params/**")
    assert_same_tree(found["params"], model()["params"])
    assert found["opt"] == "mine"


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    ocp.Checkpointer(ocp.PyTreeHandler(use_ocdbt=False)).save(
        tmp_path / "x", args=ocp.args.PyTreeSave({"a": np.arange(9.0), "b": np.arange(9.0)})
    )
    (tmp_path / "x" / "b" / "c" / "0").unlink()
    rules = [Map("a", lambda a: a + 1)]
    assert ocp.load(tmp_path / "x", transforms=rules, only="a")["a"].tolist() == [*range(1, 10)]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([Rename("parms/**", r"p/\1")], "matches none of"),
        ([Rename("nam", "p")], r"^Rename\(pattern='nam', to='p'\): .*nearest names are name\."),
        ([Rename("params", "p")], r"Leaves exist below it: params/\*\* matches them"),
        ([Rename("params/*/w", "w")], "gives two leaves the name w"),
        ([Rename("name", "opt/0")], "gives a leaf the name opt/0, which another has"),
        ([Combine(("params/layers_*/w", r"params/layers_\1/c"), r"\1", min)], "layers_0/c"),
        ([Stack("params/**", "p")], "needs a number in .*number="),
        (
            [Rename("opt/0", "y/0"), Rename("params/layers_0/b", "y/1"), Stack("y/*", "y")],
            r"the parts differ: float32\[2\], int32\[4\]",
        ),
        ([Drop("params/layers_1/w"), Stack("params/layers_*/w", "w")], "finds no number 1"),
        ([Stack(re.compile(r"params/layers_(\d)/(w|b)"), "all")], "would stack"),
        ([Stack(re.compile(r"(\d)?name"), "p")], "needs a number in name, found ''"),
        ([Rename("name", "x²"), Stack("x*", "y")], "needs a number in x², found '²'"),
        (
            [Map("params/layers_1/b", np.float64), Stack("params/layers_*/b", "b")],
            "the parts differ: int32\\[4\\], float64\\[4\\]",
        ),
        ([Rename("name", "x0"), Stack("x*", "x")], "str is no array"),
        ([Split("name", ("a", "b"))], "str is no array"),
        ([Transpose("none")], "matches only empty containers"),
        ([Split("params/layers_0/b", ("x", "y", "z"))], "4 elements cannot be cut into 3"),
        ([Unstack("name", r"n/\g<i>")], "its shape is known only once it has been read"),
        ([Unstack("params/layers_0/w", r"n/\g<i>", axis=2)], "there is no axis 2"),
        ([Transpose("params/*/w", (0, 0))], "are not those of an array"),
        ([Fallback("x")], "there is none"),
        ([AssignmentMap([("x", "y")])], "assigns leaves"),
        ([Map("params/layers_0/w", lambda w: w @ w)], "map of float32\\[2, 3\\] failed"),
        ([Split("name", ("a", "b"), fn=lambda v: [v])], "returned 1 values, not 2"),
    ],
)
def test_rules_that_do_not_fit_are_refused(saved: Path, rules: list[Any], message: str) -> None:
    with pytest.raises(TransformError, match=message):
        ocp.load(saved, transforms=rules)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rename("a/*", r"b/\2"), "refers to"),
        (lambda: Combine((), "x", min), r"inputs is \(\)"),
        (lambda: Combine("abc", "x", min), "inputs is 'abc'"),
        (lambda: Rename("a/**", "b/**"), r"'b/\*\*' is a pattern"),
        (lambda: Rename("a/**", "b/\1"), "raw string"),
        (lambda: Combine(("a/*", "b/*"), "x", min), "is a pattern"),
        (lambda: Unstack("a", "b"), "all parts would be called"),
        (lambda: Stack("a", "b"), r"refers to \\1"),
        (lambda: Split("a", ()), r"Split: to is \(\)"),
        (lambda: Split("a", "bc"), "Split: to is 'bc'"),
    ],
)
def test_rules_that_make_no_sense_cannot_be_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_cast_names_a_dtype() -> None:
    with pytest.raises(TypeError, match="float31"):
        Cast("a", "float31")


def test_patterns_of_a_target_are_compared_with_its_leaves(saved: Path) -> None:
    with pytest.raises(TransformError, match=r"none of 1 leaves of the target\. There are mine\."):
        ocp.load(saved, {"mine": 1}, transforms=[Fallback("*/x")])


@pytest.mark.parametrize(
    "rules", [["a"], {"a": ocp.Transform(original_key="b")}], ids=["names", "Orbax's"]
)
def test_what_is_no_rule_is_refused(saved: Path, rules: Any) -> None:
    with pytest.raises(TypeError, match="transforms must be a list of rules"):
        ocp.load(saved, transforms=rules)


def test_what_is_no_pattern_or_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match=r"A pattern is \['a'\]"):
        Rename(["a"], "b")  # pyright: ignore[reportArgumentType] - a mistake
    with pytest.raises(TypeError, match="bfloat61"):
        Cast("a", "bfloat61")


@pytest.mark.parametrize("rule", [Drop, Fallback, KeyData, Transpose, WrapKeys])
def test_a_rule_refuses_what_is_no_pattern(rule: Any) -> None:
    with pytest.raises(TypeError, match=r"A pattern is \['a'\]"):
        rule(["a"])


def test_what_a_target_lacks_or_has_more_is_told_under_the_new_names(saved: Path) -> None:
    with pytest.raises(TreeMismatchError, match=r"blocks/0/w"):
        ocp.load(saved, {"a": 1}, transforms=[Rename("params/layers_*/**", r"blocks/\1/\2")])


def test_no_leaf_left_is_an_error(saved: Path) -> None:
    with pytest.raises(TransformError, match=r"No leaf is left by only 'params/\*\*'"):
        ocp.load(saved, only="params/**", skip="**")


@pytest.mark.parametrize("make", [np.zeros, jnp.zeros], ids=["numpy", "jax"])
@pytest.mark.parametrize("shape", [(2, 3), (6,)])
def test_a_computed_leaf_is_not_bent_into_the_shape_of_its_target(
    saved: Path, make: Any, shape: tuple[int, ...]
) -> None:
    rules = [Transpose("params/layers_0/w"), Rename("params/layers_0/w", "a")]
    with pytest.raises(TreeMismatchError, match="a: "):
        ocp.load(saved, {"a": make(shape, np.float32)}, transforms=rules, only="a")


def test_nothing_is_computed_from_empty_containers(tmp_path: Path) -> None:
    tree = {"a_1": {"x": 1.0, "state": (), "none": None}, "a_2": {"x": 2.0, "state": {}}}
    ocp.save(tmp_path / "x", tree)
    found = ocp.load(tmp_path / "x", transforms=[Map("a_*/**", lambda x: x + 1)])
    assert found["a_1"]["x"] == 2.0
    assert found["a_1"]["none"] is None
    rules = [Stack("a_*/**", r"a/\2", first=1), Rename("a_1/none", "none")]
    found = ocp.load(tmp_path / "x", transforms=rules)
    assert found["a"]["x"].tolist() == [1.0, 2.0]
    assert found["none"] is None


def test_stacked_numbers_may_begin_with_one(saved: Path) -> None:
    rules = [Drop("params/layers_0/**"), Stack("params/layers_*/w", "w", first=1)]
    found = ocp.load(saved, transforms=rules, only="w")
    np.testing.assert_array_equal(found["w"], np.stack([layer(1, "w"), layer(2, "w")]))
    with pytest.raises(TransformError, match=r"finds no number 1 for w, but params/layers_2/w"):
        ocp.load(saved, transforms=[Drop("params/layers_1/**"), *rules])
