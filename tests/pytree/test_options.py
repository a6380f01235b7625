"""What `load` and `save` can be told: what may be missing, casts, shardings, functions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf
from orbit_ckpt.errors import TransformError, TreeMismatchError
from tests.support import assert_same_tree, make_mesh, put

TREE: dict[str, Any] = {
    "params": {"kernel": jnp.arange(32.0).reshape(8, 4), "bias": np.ones(4, np.float32)},
    "opt": [{"mu": jnp.full((8, 4), 0.5), "count": jnp.int32(3)}],
    "step": 7,
    "name": "run",
}
ABSTRACT = jax.ShapeDtypeStruct((2,), jnp.float32)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    ocp.save(tmp_path / "saved", TREE)
    return tmp_path / "saved"


# Missing and unexpected


def test_missing_leaves_stay_those_of_the_target_if_asked(saved: Path) -> None:
    found: Any = ocp.load(saved, like=TREE | {"ema": np.full(2, 9.0)}, missing="target")
    assert_same_tree(found, TREE | {"ema": np.full(2, 9.0)})


def test_missing_leaves_are_skipped_if_asked(saved: Path) -> None:
    found: Any = ocp.load(saved, like=TREE | {"ema": ABSTRACT}, missing="skip")
    assert found["ema"] is ocp.PLACEHOLDER
    assert found["step"] == 7


def test_an_abstract_target_has_nothing_to_keep(saved: Path) -> None:
    target = TREE | {"ema": ABSTRACT, "params": TREE["params"] | {"kernels": ABSTRACT}}
    with pytest.raises(TreeMismatchError, match="fallback") as caught:
        ocp.load(saved, like=target, missing="target")
    assert caught.value.paths == ("ema", "params/kernels")


def test_unexpected_leaves_are_ignored_if_asked(saved: Path) -> None:
    with pytest.raises(TreeMismatchError, match="unexpected='ignore'"):
        ocp.load(saved, like={"step": 0})
    assert ocp.load(saved, like={"step": 0}, unexpected="ignore") == {"step": 7}


def test_option_that_does_not_exist_is_refused(saved: Path) -> None:
    with pytest.raises(ValueError, match="missing is 'ignore'; give one of 'error', 'target'"):
        ocp.load(saved, missing="ignore")  # pyright: ignore[reportArgumentType] - the point
    with pytest.raises(ValueError, match="cast is 'safe'; give one of 'exact'"):
        ocp.load(saved, cast="safe")  # pyright: ignore[reportArgumentType] - the point


# Fallback


def test_fallback_fills_only_what_is_missing(saved: Path) -> None:
    fallback = {"params": {"kernel": np.zeros((8, 4), np.float32)}, "ema": [np.full(2, 9.0)]}
    found: Any = ocp.load(saved, like=TREE | {"ema": [ABSTRACT]}, fallback=fallback)
    np.testing.assert_array_equal(found["params"]["kernel"], TREE["params"]["kernel"])
    assert_same_tree(found["ema"], [jnp.full(2, 9.0)])


def test_fallback_is_added_to_what_was_saved_without_a_target(saved: Path) -> None:
    found = ocp.load(saved, fallback={"step": 0, "ema": {"a": 1}})
    assert found["step"] == 7
    assert found["ema"] == {"a": 1}
    assert_same_tree(found["opt"], TREE["opt"])


def test_fallback_is_placed_like_the_target(saved: Path) -> None:
    sharding = NamedSharding(make_mesh(x=8), PartitionSpec("x"))
    target = TREE | {"ema": jax.ShapeDtypeStruct((8,), jnp.bfloat16, sharding=sharding)}
    found = ocp.load(saved, like=target, fallback={"ema": np.arange(8.0)})
    assert_same_tree(found["ema"], put(jnp.arange(8, dtype=jnp.bfloat16), "x", x=8))


def test_fallback_that_fits_is_not_copied(saved: Path) -> None:
    spare = jnp.arange(2.0)
    found: Any = ocp.load(saved, like=TREE | {"ema": ABSTRACT}, fallback={"ema": spare})
    assert found["ema"] is spare


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        (jax.ShapeDtypeStruct((), jnp.float32), 3.0, jnp.float32(3)),
        (jax.ShapeDtypeStruct((), jnp.float32), np.float64(3), jnp.float32(3)),
        (np.zeros((), np.float32), 3.0, np.asarray(3, np.float32)),
        (np.zeros(2, np.float32), jnp.ones(2, jnp.bfloat16), np.ones(2, np.float32)),
        (np.float32(0), 3.0, np.float32(3)),
        (0, np.int64(3), 3),
        (0.0, jnp.float32(3), 3.0),
        ("", "text", "text"),
    ],
)
def test_fallback_gets_the_type_and_dtype_of_the_target(
    saved: Path, wanted: object, value: object, expected: object
) -> None:
    found: Any = ocp.load(saved, like=TREE | {"ema": wanted}, fallback={"ema": value})
    assert_same_tree(found["ema"], expected)


def test_fallback_is_padded_or_cut_where_the_target_need_not_be_strict(saved: Path) -> None:
    target = TREE | {"ema": jax.ShapeDtypeStruct((2, 3), jnp.float32)}
    fallback = {"ema": np.array([[1, 2], [3, 4], [5, 6]], np.float32)}
    found = ocp.load(saved, like=target, fallback=fallback, strict=False)
    assert found["ema"].tolist() == [[1, 2, 0], [3, 4, 0]]


def test_lazy_fallback_is_read_for_a_target(saved: Path) -> None:
    lazy = ocp.load(saved, lazy=True)["params"]["kernel"]
    target = TREE | {"ema": jax.ShapeDtypeStruct((8, 4), jnp.bfloat16)}
    found = ocp.load(saved, like=target, fallback={"ema": lazy})
    assert_same_tree(found["ema"], TREE["params"]["kernel"].astype(jnp.bfloat16))


def test_casts_by_patterns_reach_the_fallback(saved: Path) -> None:
    fallback = {"ema": np.arange(2.0), "jax": jnp.arange(2.0), "count": np.int32(3), "n": 1.5}
    found = ocp.load(saved, fallback=fallback, cast={"ema": np.float16, "**": jnp.bfloat16})
    assert found["ema"].dtype == np.float16
    assert type(found["ema"]) is np.ndarray
    assert_same_tree(found["jax"], jnp.arange(2, dtype=jnp.bfloat16))
    assert (found["count"].dtype, found["n"]) == (np.int32, 1.5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(3, np.float32), r"ema: shape \(2,\) wanted, \(3,\)"),
        (5, r"ema: shape \(2,\) wanted, \(\)"),
        (np.zeros(2, complex), "ema: dtype float32 wanted, complex128"),
        ("text", "ema: the target has an array of shape .* a string"),
    ],
)
def test_fallback_that_does_not_fit_is_refused(saved: Path, value: object, message: str) -> None:
    with pytest.raises(TreeMismatchError, match=message):
        ocp.load(saved, like=TREE | {"ema": ABSTRACT}, fallback={"ema": value})


# Casts


def test_casts_by_patterns_spare_other_kinds_of_numbers(saved: Path) -> None:
    found = ocp.load(saved, cast={"params/**": jnp.bfloat16, "**": np.float16})
    assert found["params"]["kernel"].dtype == jnp.bfloat16
    assert type(found["params"]["bias"]) is np.ndarray
    assert found["params"]["bias"].dtype == jnp.bfloat16
    assert found["opt"][0]["mu"].dtype == np.float16
    assert found["opt"][0]["count"].dtype == np.int32
    assert (found["step"], found["name"]) == (7, "run")


def test_casts_go_before_the_target_and_after_rules(saved: Path) -> None:
    like = {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32)}
    found = ocp.load(
        saved,
        like=like,
        transforms=[tf.Map("params/kernel", lambda w: w * 2), tf.Rename("params/kernel", "w")],
        unexpected="ignore",
        cast={"w": jnp.bfloat16},
    )
    assert_same_tree(found["w"], (TREE["params"]["kernel"] * 2).astype(jnp.bfloat16))


@pytest.mark.parametrize("on", ["numpy", "jax"])
def test_computed_array_of_jax_is_cast_and_stays_one(on: Any, saved: Path) -> None:
    double = tf.Map("params/kernel", lambda w: w * 2, on=on)
    found = ocp.load(saved, transforms=[double], cast=jnp.bfloat16)
    assert_same_tree(found["params"]["kernel"], (TREE["params"]["kernel"] * 2).astype(jnp.bfloat16))


def test_computed_array_is_padded_where_the_target_need_not_be_strict(saved: Path) -> None:
    like = {"params": {"kernel": jax.ShapeDtypeStruct((9, 3), jnp.float32)}}
    found = ocp.load(
        saved,
        like=like,
        transforms=[tf.Map("params/kernel", lambda w: w * 2)],
        unexpected="ignore",
        strict=False,
    )
    expected = np.pad(TREE["params"]["kernel"][:, :3] * 2, ((0, 1), (0, 0)))
    np.testing.assert_array_equal(found["params"]["kernel"], expected)


def test_computed_keys_go_to_the_sharding_asked_for(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"key": jax.random.key_data(jax.random.key(1))})
    device = jax.devices()[3]
    found = ocp.load(tmp_path / "x", transforms=[tf.WrapKeys("key")], sharding=device)
    assert found["key"].devices() == {device}
    assert_same_tree(found, {"key": jax.device_put(jax.random.key(1), device)})


def test_cast_that_matches_nothing_is_refused(saved: Path) -> None:
    with pytest.raises(TransformError, match=r"cast: 'parms/\*\*' matches no array of 5"):
        ocp.load(saved, cast={"parms/**": jnp.bfloat16})


def test_no_cast_if_the_target_is_to_be_exact(saved: Path) -> None:
    like = {"params": {"kernel": jax.ShapeDtypeStruct((8, 4), jnp.bfloat16)}}
    with pytest.raises(TreeMismatchError, match="dtype bfloat16 wanted, float32 stored"):
        ocp.load(saved, like=like, unexpected="ignore", cast="exact")
    found = ocp.load(saved, like=like, unexpected="ignore")
    assert found["params"]["kernel"].dtype == jnp.bfloat16


def test_other_kinds_of_numbers_only_if_asked_and_only_if_they_fit(saved: Path) -> None:
    like = {"params": {"kernel": jax.ShapeDtypeStruct((8, 4), jnp.int8)}}
    with pytest.raises(TreeMismatchError, match="dtype int8 wanted, float32 stored"):
        ocp.load(saved, like=like, unexpected="ignore")
    found = ocp.load(saved, like=like, unexpected="ignore", cast="unsafe")
    np.testing.assert_array_equal(found["params"]["kernel"], np.arange(32).reshape(8, 4))
    for value in (300.0, np.nan, np.inf):
        ocp.save(saved, {"x": np.array([1.0, value])}, overwrite=True)
        with pytest.raises(TreeMismatchError, match="do not fit int8"):
            ocp.load(saved, like={"x": np.zeros(2, np.int8)}, cast="unsafe")


def test_casts_on_save_are_those_on_load(tmp_path: Path) -> None:
    casts = {"params/**": jnp.bfloat16, re.compile("opt.*"): np.float16}
    ocp.save(tmp_path / "x", TREE, cast=casts)
    ocp.save_async(tmp_path / "y", TREE, cast=casts).result()
    ocp.save(tmp_path / "whole", TREE)
    expected = ocp.load(tmp_path / "whole", cast=casts)
    assert expected["opt"][0]["count"].dtype == np.int32
    assert_same_tree(ocp.load(tmp_path / "x"), expected)
    assert_same_tree(ocp.load(tmp_path / "y"), expected)
    assert TREE["params"]["kernel"].dtype == jnp.float32


def test_cast_on_save_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransformError, match="'parms' matches no array"):
        ocp.save(tmp_path / "x", TREE, cast={"parms": jnp.bfloat16})
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "dtype", [jnp.bfloat16, "bfloat16", np.dtype(jnp.bfloat16)], ids=["type", "name", "dtype"]
)
def test_one_dtype_casts_all_arrays_of_its_kind(dtype: Any, saved: Path, tmp_path: Path) -> None:
    found = ocp.load(saved, cast=dtype)
    assert found["params"]["kernel"].dtype == jnp.bfloat16
    assert found["params"]["bias"].dtype == jnp.bfloat16
    assert found["opt"][0]["count"].dtype == jnp.int32
    assert "cast float32 -> bfloat16" in str(ocp.plan(saved, cast=dtype))
    ocp.save(tmp_path / "cast", TREE, cast=dtype)
    ocp.convert(saved, tmp_path / "copy", cast=dtype)
    for path in (tmp_path / "cast", tmp_path / "copy"):
        assert ocp.load(path)["params"]["kernel"].dtype == jnp.bfloat16


@pytest.mark.parametrize("wrong", ["bf16", 3, ["float32"], {"**": "bf16"}])
def test_what_is_no_cast_is_refused(wrong: Any, saved: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^cast.*'exact'.*bfloat16"):
        ocp.load(saved, cast=wrong)


def test_target_under_another_name_is_refused_with_the_right_one(saved: Path) -> None:
    wrong: Any
    for wrong in ({"target": TREE}, {"item": TREE}, {"items": TREE}):
        with pytest.raises(TypeError, match=r"load\(\) has no argument .*; give .* as like="):
            ocp.load(saved, **wrong)
        with pytest.raises(TypeError, match=r"plan\(\) has no argument .*; give .* as like="):
            ocp.plan(saved, **wrong)


def test_wrong_shape_or_dtype_names_what_allows_it(saved: Path) -> None:
    like = {"params": {"kernel": np.zeros((4, 8), np.float32)}}
    with pytest.raises(TreeMismatchError, match=r"(?s)shapes.*strict=False.*Transpose"):
        ocp.load(saved, like=like, unexpected="ignore")
    like = {"params": {"kernel": np.zeros((8, 4), np.int32)}}
    with pytest.raises(TreeMismatchError, match=r"(?s)shapes or dtypes.*cast='unsafe'") as caught:
        ocp.load(saved, like=like, unexpected="ignore")
    assert "strict=False" not in str(caught.value)


# Shardings


def test_shardings_by_patterns(saved: Path) -> None:
    mesh = make_mesh(x=4, y=2)
    rules = {"**/kernel": PartitionSpec("x", "y"), "**": PartitionSpec()}
    found = ocp.load(saved, sharding=tf.partition(mesh, rules))
    assert found["params"]["kernel"].sharding == NamedSharding(mesh, PartitionSpec("x", "y"))
    assert found["opt"][0]["mu"].sharding == NamedSharding(mesh, PartitionSpec())
    assert type(found["params"]["bias"]) is np.ndarray
    np.testing.assert_array_equal(found["params"]["kernel"], TREE["params"]["kernel"])


def test_shardings_by_patterns_go_before_those_of_the_target(saved: Path) -> None:
    sharding = NamedSharding(make_mesh(x=8), PartitionSpec("x"))
    found = ocp.load(saved, like=TREE, sharding={"opt/**/count": PLAIN, "**": sharding})
    assert found["params"]["kernel"].sharding == sharding
    assert found["opt"][0]["count"].sharding == PLAIN


PLAIN = NamedSharding(make_mesh(x=1), PartitionSpec())


def test_computed_leaves_have_shardings_by_patterns(saved: Path) -> None:
    sharding = NamedSharding(make_mesh(x=8), PartitionSpec("x"))
    found = ocp.load(
        saved,
        only="both",
        transforms=[tf.Combine(("params/kernel", "opt/0/mu"), "both", np.add)],
        sharding={"both": sharding},
    )
    assert_same_tree(found, {"both": jax.device_put(TREE["params"]["kernel"] + 0.5, sharding)})


def test_array_without_a_sharding_is_refused(saved: Path) -> None:
    with pytest.raises(TransformError, match=r"no pattern matches 2 JAX arrays: opt/0/count, opt/"):
        ocp.load(saved, sharding={"params/*": PLAIN})


# Functions


def test_every_loaded_leaf_goes_through_a_function(saved: Path) -> None:
    seen: dict[str, type] = {}

    def double(value: Any, name: str) -> object:
        seen[name] = type(value)
        return value * 2

    found: Any = ocp.load(saved, like=TREE | {"none": None}, map_leaf=double)
    np.testing.assert_array_equal(found["params"]["kernel"], TREE["params"]["kernel"] * 2)
    assert (found["step"], found["name"], found["none"]) == (14, "runrun", None)
    assert sorted(seen) == [
        *("name", "opt/0/count", "opt/0/mu", "params/bias", "params/kernel", "step"),
    ]
    assert issubclass(seen["params/kernel"], jax.Array)
    assert seen["params/bias"] is np.ndarray


def test_failing_function_is_told_with_the_leaf(saved: Path) -> None:
    with pytest.raises(TransformError, match=r"name: map_leaf failed: TypeError: ") as caught:
        ocp.load(saved, map_leaf=lambda value, _: value + 1)
    assert isinstance(caught.value.__cause__, TypeError)


# Parts


def test_one_of_several_patterns_has_to_match(saved: Path) -> None:
    found = ocp.load(saved, only=["step", "params/bias", re.compile("na.*")])
    assert_same_tree(found, {"params": {"bias": TREE["params"]["bias"]}, "step": 7, "name": "run"})
    assert set(ocp.load(saved, skip=["opt/**", "params/**"])) == {"step", "name"}


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("params", "params/** matches them"),
        ("params/", "params/** matches them"),
        ("params/kernl", "nearest names are params/kernel"),
        ("params.kernl", "nearest names are params/kernel"),
        ("zzz", "There are name, opt/0/count"),
    ],
)
def test_pattern_that_matches_nothing_gets_the_fitting_hint(
    pattern: str, hint: str, saved: Path
) -> None:
    with pytest.raises(TransformError, match=re.escape(hint)):
        ocp.load(saved, only=pattern)


def test_name_with_dots_is_accepted_where_no_leaf_has_it(tmp_path: Path, saved: Path) -> None:
    found = ocp.load(saved, only="opt.0.mu", cast={"opt.0.mu": jnp.bfloat16})
    assert found["opt"][0]["mu"].dtype == jnp.bfloat16
    ocp.save(tmp_path / "dots", {"a.b": 1, "a": {"c": 2}, "d": {"e.f": 3}})
    assert ocp.load(tmp_path / "dots", only="a.b") == {"a.b": 1}
    assert ocp.load(tmp_path / "dots", only="d.e.f") == {"d": {"e.f": 3}}


def test_pattern_that_matches_nothing_is_refused(saved: Path) -> None:
    with pytest.raises(TransformError, match=r"only: 'parms/\*\*' .* are params/\*\*\."):
        ocp.load(saved, only=["step", "parms/**"])
    with pytest.raises(TransformError, match=r"skip: 'parms/\*\*' matches no leaf of 6"):
        ocp.load(saved, skip=["step", "parms/**"])


def test_elements_of_lists_keep_their_place(tmp_path: Path) -> None:
    tree = {"t": [{"a": 1, "b": [2, 3]}, {"a": 4}, 5], "u": [6]}
    ocp.save(tmp_path / "x", tree)
    found = ocp.load(tmp_path / "x", only=["t/0/b/1", "t/1/a"])
    assert found == {"t": [{"b": [ocp.PLACEHOLDER, 3]}, {"a": 4}]}
    assert ocp.load(tmp_path / "x", transforms=[tf.Drop("t/0/**"), tf.Drop("u/0")]) == {
        "t": [ocp.PLACEHOLDER, {"a": 4}, 5]
    }
    assert ocp.load(tmp_path / "x", only="t/2") == {"t": [ocp.PLACEHOLDER, ocp.PLACEHOLDER, 5]}


def test_lists_grow_lose_elements_and_become_dicts_by_rules(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"t": [1, {"a": 2}], "u": 3, "none": None})

    def load(*rules: tf.Rule) -> Any:
        return ocp.load(tmp_path / "x", transforms=[*rules, tf.Drop("none")])

    assert load(tf.Rename("u", "t/2")) == {"t": [1, {"a": 2}, 3]}
    assert load(tf.Rename("u", "t/1/b")) == {"t": [1, {"a": 2, "b": 3}]}
    assert load(tf.Rename("u", "t/3")) == {"t": [1, {"a": 2}, ocp.PLACEHOLDER, 3]}
    assert load(tf.Rename("u", "t/u")) == {"t": {"0": 1, "1": {"a": 2}, "u": 3}}
    assert load(tf.Drop("t/0")) == {"t": [ocp.PLACEHOLDER, {"a": 2}], "u": 3}
    assert ocp.load(tmp_path / "x", transforms=[tf.Rename("u", "none/a")])["none"] == {"a": 3}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (tf.Rename("u", "t"), "t is a leaf and has children"),
        (tf.Rename("u", "t/0/a"), "t.0 is a leaf and has children"),
    ],
)
def test_leaves_that_make_no_tree_are_refused_before_anything_is_read(
    tmp_path: Path, rule: tf.Rule, message: str
) -> None:
    ocp.save(tmp_path / "x", {"t": [1, 2], "u": 6})
    for run in (ocp.load, ocp.plan):
        with pytest.raises(TransformError, match=message):
            run(tmp_path / "x", transforms=[rule])


def test_the_step_of_a_run_is_a_path(tmp_path: Path) -> None:
    options: dict[str, Any] = {"step": 30}
    for read in (ocp.load, ocp.plan):
        with pytest.raises(TypeError, match="no argument 'step'; give the directory of the step"):
            read(tmp_path, **options)
