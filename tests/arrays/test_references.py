"""Which arrays on the CPU a save may refer to, and that the views keep their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orbit_ckpt._src.arrays import references
from orbit_ckpt._src.arrays.memory import aligned_empty
from orbit_ckpt._src.arrays.references import (
    is_output,
    sample_checksum,
    try_views,
    view_of_output,
    views_keep_values,
)
from tests.support import put

SIZE = 1 << 16


def aligned() -> np.ndarray:
    """Return ones in memory that JAX shares."""
    values = aligned_empty((SIZE,), np.dtype(np.float32))
    values[:] = 1
    return values


@jax.jit
def successor(x: jax.Array) -> jax.Array:
    return x + 1


def sharing(make: Callable[[np.ndarray], jax.Array]) -> bool:
    """Return whether an array made of a numpy array shows later changes of that."""
    source = aligned()
    array = make(source).block_until_ready()
    source[:] = 5
    return bool(array.addressable_shards[0].data[0] == 5)


SHARERS: dict[str, Callable[[np.ndarray], Any]] = {
    "device_put": jax.device_put,
    "device_put without aliases": lambda x: jax.device_put(x, may_alias=False),
    "device_put of shards": lambda x: put(x, "x", x=8),
    "callback": lambda x: jax.make_array_from_callback(
        x.shape, put(np.ones(8), "x", x=8).sharding, lambda index: x[index]
    ),
    "process-local data": lambda x: jax.make_array_from_process_local_data(
        put(np.ones(8), "x", x=8).sharding, x
    ),
    "dlpack": jnp.from_dlpack,
    "device arrays": lambda x: jax.make_array_from_single_device_arrays(
        x.shape, jax.device_put(x).sharding, [jax.device_put(x)]
    ),
    "same dtype": lambda x: jax.device_put(x).astype(np.float32),
    "put again": lambda x: jax.device_put(jax.device_put(x)),
    "forwarded by jit": lambda x: jax.jit(lambda y: y)(jax.device_put(x)),
    "stop_gradient": lambda x: jax.lax.stop_gradient(jax.device_put(x)),
    "array without copy": lambda x: jnp.array(jax.device_put(x), copy=False),
}


@pytest.mark.parametrize("make", SHARERS.values(), ids=SHARERS)
def test_arrays_that_share_memory_of_numpy_are_never_referred_to(
    make: Callable[[np.ndarray], jax.Array],
) -> None:
    array = make(aligned())
    shards = [shard.data for shard in array.addressable_shards]
    if sharing(make):
        assert not is_output(array)
        assert all(view_of_output(shard) is None for shard in shards)


@pytest.mark.parametrize("make", SHARERS.values(), ids=SHARERS)
@pytest.mark.parametrize(
    "function",
    [lambda x: x, jnp.copy, lambda x: x * 1, lambda x: x.reshape(-1, 8), lambda x: x.at[0].set(5)],
    ids=["identity", "copy", "multiply", "reshape", "update"],
)
def test_donated_memory_of_numpy_does_not_become_that_of_an_output(
    function: Callable[[Any], Any], make: Callable[[np.ndarray], jax.Array]
) -> None:
    source = aligned()
    result = jax.jit(function, donate_argnums=0)(make(source))
    before = np.array(result)
    source[:] = 7
    assert np.array_equal(result, before)


def test_device_put_shares_memory_here() -> None:
    assert sharing(jax.device_put)  # else the test above shows nothing


@pytest.mark.parametrize("calls", [1, 2])  # compiled, then from the cache
def test_outputs_of_compiled_functions_are_referred_to(calls: int) -> None:
    function = jax.jit(lambda x: x * 2)
    inputs = [jax.device_put(aligned()), put(aligned(), "x", x=8)]
    results = [[function(array) for array in inputs] for _ in range(calls)]
    for array in [shard.data for result in results[-1] for shard in result.addressable_shards]:
        view = view_of_output(array)
        assert view is not None
        assert np.array_equal(view, np.full(array.shape, 2))
        assert np.shares_memory(view, np.asarray(array))


@pytest.mark.parametrize("make", [jnp.zeros, lambda n: jnp.zeros(n) + 1, jnp.arange])
def test_outputs_of_operations_are_referred_to(make: Callable[[int], jax.Array]) -> None:
    assert all(is_output(make(SIZE)) for _ in range(2))


def test_arrays_of_unknown_origin_are_not_referred_to(monkeypatch: pytest.MonkeyPatch) -> None:
    array = successor(jnp.zeros(SIZE))
    assert view_of_output(array) is not None
    with monkeypatch.context() as patch:
        patch.setattr(references, "getattr", lambda *_: None, raising=False)
        assert view_of_output(array) is None
    monkeypatch.setattr(references, "views_keep_values", lambda: False)
    assert view_of_output(array) is None


def test_views_are_tried_out_on_versions_that_were_not_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(references, "_TESTED", ((0, 0, 0), (0, 0, 0)))
    for result in (True, False):
        monkeypatch.setattr(references, "try_views", lambda result=result: result)
        assert views_keep_values.__wrapped__() is result


# What references rely on, of the installed JAX


def test_the_trial_succeeds_here() -> None:
    assert try_views() or not views_keep_values()


@pytest.mark.parametrize("sharded", [False, True])
def test_a_view_keeps_its_values_when_its_array_is_donated(sharded: bool) -> None:
    if not views_keep_values():
        pytest.skip("this version of JAX changes memory that a view shows, so it is copied")
    array = successor(put(np.zeros(SIZE), "x", x=8) if sharded else jnp.zeros(SIZE))
    views = [view_of_output(shard.data) for shard in array.addressable_shards]
    step = jax.jit(lambda x: x * 0 + 7, donate_argnums=0)
    for _ in range(3):
        array = step(array)
        jax.block_until_ready(array)
        for view in views:
            assert view is not None
            assert (view == 1).all()


def test_a_view_keeps_its_values_when_its_array_is_deleted() -> None:
    if not views_keep_values():
        pytest.skip("this version of JAX frees memory that a view shows, so it is copied")
    array = successor(jnp.zeros(SIZE))
    view = view_of_output(array)
    array.delete()
    others = [successor(jnp.full(SIZE, i)) for i in range(8)]
    jax.block_until_ready(others)
    assert view is not None
    assert (view == 1).all()


# Checksums of samples


@pytest.mark.parametrize("nbytes", [0, 1, 7, 4096, 1 << 16, (1 << 16) + 1, (1 << 20) + 5])
def test_a_checksum_shows_that_all_of_an_array_has_changed(nbytes: int) -> None:
    values = np.zeros(nbytes, np.uint8)
    before = sample_checksum(values)
    assert sample_checksum(values.copy()) == before
    values += 1
    assert sample_checksum(values) != before or not nbytes


def test_a_checksum_shows_that_a_row_or_the_end_has_changed() -> None:
    values = np.zeros((64, 4096), np.float32)
    before = sample_checksum(values)
    values[17] = 1
    row = sample_checksum(values)
    values[17] = 0
    values[-1, -1] = 1
    assert before not in {row, sample_checksum(values)}
