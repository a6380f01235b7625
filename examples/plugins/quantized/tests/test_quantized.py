"""Quantized arrays keep the contract of type handlers, and are resharded as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt.errors import UnsupportedLeafError
from orbit_ckpt.testing import TypeHandlerContract
from orbit_ckpt.type_handlers import (
    GLOBAL_TYPE_HANDLER_REGISTRY,
    TypeHandler,
    register_type_handler,
)
from orbit_ckpt_quantized import QuantizedArray, QuantizedHandler, QuantizedRestoreArgs, quantize

WEIGHTS = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)


def sharding(*spec: str | None) -> jax.NamedSharding:
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    return jax.NamedSharding(mesh, jax.P(*spec))


def placed(*spec: str | None, like: QuantizedArray | None = None) -> QuantizedArray:
    """Return quantized weights whose rows or columns are on several devices."""
    leaf = like or quantize(jnp.asarray(WEIGHTS))
    scales = jax.device_put(leaf.scales, sharding(spec[0]))
    return QuantizedArray(jax.device_put(leaf.values, sharding(*spec)), scales)


def abstract(leaf: QuantizedArray, *spec: str | None) -> QuantizedArray:
    return QuantizedArray(
        jax.ShapeDtypeStruct(leaf.shape, jnp.int8, sharding=sharding(*spec)),
        jax.ShapeDtypeStruct(leaf.scales.shape, leaf.scales.dtype, sharding=sharding(spec[0])),
    )


class TestQuantizedHandler(TypeHandlerContract):
    @override
    def handler(self) -> TypeHandler:
        return QuantizedHandler()

    @override
    def values(self) -> list[object]:
        half = quantize(jnp.arange(24, dtype=jnp.bfloat16).reshape(2, 3, 4), axis=0)
        other = quantize(-jnp.asarray(WEIGHTS))
        return [placed("x"), other, placed(None, "x"), half, quantize(jnp.zeros((0, 4)))]

    @override
    def targets(self, value: Any) -> Any:
        if value.shape != WEIGHTS.shape:
            return [(value, value), (QuantizedRestoreArgs(), value)]
        specs: list[tuple[str | None, ...]] = [("x", None), (None, "x"), (None, None)]
        wanted = [(placed(*spec, like=value), spec) for spec in specs]
        return [
            *[(expected, expected) for expected, _ in wanted],
            *[(abstract(value, *spec), expected) for expected, spec in wanted],
            *[(QuantizedRestoreArgs(sharding=sharding(*s)), expected) for expected, s in wanted],
        ]

    @override
    def facts(self, value: Any) -> dict[str, object]:
        return {"shape": value.shape, "dtype": np.dtype(np.int8)}

    @override
    def expect_same(self, found: Any, expected: object, where: str = "what was loaded") -> None:
        lazy = {id(x): x.get() for x in jax.tree.leaves(found) if isinstance(x, ocp.LazyArray)}
        found = jax.tree.map(lambda x: lazy.get(id(x), x), found)
        super().expect_same(found, expected, where)


@pytest.fixture(autouse=True)
def _registered() -> Any:
    with GLOBAL_TYPE_HANDLER_REGISTRY.scope():
        register_type_handler(QuantizedArray, QuantizedHandler())
        yield


def test_a_quantized_array_is_one_leaf(tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"layer": {"w": placed("x"), "b": jnp.zeros(3)}})
    plan = ocp.plan(tmp_path / "a")
    assert sorted(leaf.name for leaf in plan.leaves) == ["layer/b", "layer/w"]
    assert plan.bytes_read > 64 * 32


def test_jax_takes_it_apart() -> None:
    leaf = placed("x")
    assert jnp.allclose(jax.jit(QuantizedArray.dequantized)(leaf), WEIGHTS, atol=0.02)


def test_a_restored_dtype_is_that_of_the_scales(tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"w": placed("x")})
    args = {"w": QuantizedRestoreArgs(dtype=jnp.bfloat16)}
    found = ocp.PyTreeCheckpointer().restore(tmp_path / "a", restore_args=args)["w"]
    assert found.values.dtype == jnp.int8
    assert found.scales.dtype == jnp.bfloat16


def test_array_args_place_it_if_they_name_its_type(tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"w": placed("x")})
    args = ocp.ArrayRestoreArgs(restore_type=QuantizedArray, sharding=sharding(None, "x"))
    found = ocp.PyTreeCheckpointer().restore(tmp_path / "a", restore_args={"w": args})["w"]
    assert found.values.sharding == sharding(None, "x")
    assert found.scales.sharding.is_fully_replicated


def test_a_lazy_leaf_reads_nothing_until_it_is_used(tmp_path: Path) -> None:
    expected = placed("x")
    ocp.save(tmp_path / "a", {"w": expected})
    lazy = ocp.load(tmp_path / "a", lazy=True)["w"]
    assert isinstance(lazy.values, ocp.LazyArray)
    assert (lazy.values[3:5] == np.asarray(expected.values)[3:5]).all()
    assert (lazy.scales.get() == expected.scales).all()


def test_conversions_and_copies_keep_it(tmp_path: Path) -> None:
    expected = placed("x")
    ocp.save(tmp_path / "a", {"w": expected})
    ocp.convert(tmp_path / "a", tmp_path / "b")
    found = ocp.load(tmp_path / "b")["w"]
    assert isinstance(found, QuantizedArray)
    assert (np.asarray(found.values) == np.asarray(expected.values)).all()
    assert ocp.diff(tmp_path / "a", tmp_path / "b", values=True).is_same


def test_a_flipped_scale_is_a_difference(tmp_path: Path) -> None:
    leaf = placed("x")
    ocp.save(tmp_path / "a", {"w": leaf})
    ocp.save(tmp_path / "b", {"w": QuantizedArray(leaf.values, jnp.asarray(leaf.scales) * 2)})
    assert not ocp.diff(tmp_path / "a", tmp_path / "b", values=True).is_same


def test_scales_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    leaf = QuantizedArray(jnp.zeros((4, 4), jnp.int8), jnp.ones((3, 1)))
    with pytest.raises(UnsupportedLeafError, match=r"w: scales of shape \(3, 1\) do not fit"):
        ocp.save(tmp_path / "a", {"w": leaf})


def test_other_formats_refuse_it_by_name(tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"w": placed("x")})
    with pytest.raises(UnsupportedLeafError, match=r"w \(QuantizedArray\)"):
        ocp.convert(tmp_path / "a", tmp_path / "b.safetensors", to="safetensors")
