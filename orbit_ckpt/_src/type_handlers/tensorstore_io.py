"""Write and read single JAX arrays with TensorStore, under Orbax's names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol, cast

import jax
import numpy as np
import tensorstore as ts

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, as_dtype
from orbit_ckpt._src.arrays.sharding import as_sharding
from orbit_ckpt._src.arrays.slices import Index, Region, Shape, from_index, whole
from orbit_ckpt._src.guards import is_json_object
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.buckets import get_ts_context
from orbit_ckpt._src.storage.tensorstore_read import open_array


class Limiter(Protocol):
    """A budget of bytes."""

    async def wait_for_bytes(self, requested_bytes: int) -> object:
        """Wait until a number of bytes is available, and reserve them."""
        ...

    async def release_bytes(self, requested_bytes: int) -> object:
        """Release reserved bytes."""
        ...


async def async_serialize(  # noqa: PLR0913, PLR0917 - Orbax's signature
    arr_inp: jax.Array,
    tensorstore_spec: Mapping[str, Any],
    context: ts.Context | None = None,
    primary_host: int | None = 0,
    replica_id: int = 0,
    use_replica_parallel: bool = True,  # noqa: ARG001 - Orbax's signature
    transaction: ts.Transaction | None = None,
    byte_limiter: Limiter | None = None,
) -> None:
    """Write an array with TensorStore.

    Args:
        arr_inp: The array.
        tensorstore_spec: Where and how to write it. Without metadata, it is compressed zarr2 in
            chunks like its shards.
        context: TensorStore's context.
        primary_host: Index of the process that creates the array, None for every process.
        replica_id: The replica of each shard to write.
        use_replica_parallel: Ignored; one device writes the whole of each shard.
        transaction: TensorStore's transaction.
        byte_limiter: Budget for the bytes being written.
    """
    spec = dict(tensorstore_spec)
    if not _has_metadata(spec):
        shard_shape = arr_inp.sharding.shard_shape(arr_inp.shape)
        chunks = [max(1, n) for n in shard_shape]
        spec["metadata"] = {"compressor": {"id": "zstd"}, "shape": arr_inp.shape, "chunks": chunks}
    spec.setdefault("dtype", as_dtype(arr_inp.dtype).name)
    used = {"context": context or get_ts_context(), "transaction": transaction}
    if primary_host is None or jax.process_index() == primary_host:
        await open_array(ts.Spec(spec), create=True, open=True, **used)
    array = await open_array(ts.Spec(spec), open=True, assume_metadata=True, **used)

    async def write(shard: Any) -> None:
        values = await asyncio.to_thread(np.asarray, shard.data)
        async with _reserved(byte_limiter, values.nbytes):
            await cast(Any, array[shard.index]).write(values)

    shards = [shard for shard in arr_inp.addressable_shards if shard.replica_id == replica_id]
    await run_all([write(shard) for shard in shards])


async def async_deserialize(  # noqa: PLR0913 - Orbax's signature
    user_sharding: object,
    tensorstore_spec: Mapping[str, Any] | ts.Spec,
    global_shape: Shape | None = None,
    dtype: DType | None = None,
    *,
    byte_limiter: Limiter | None = None,
    context: ts.Context | None = None,
    assume_metadata: bool = False,
    strict: bool = True,
) -> tuple[jax.Array, int]:
    """Read an array with TensorStore; return it, and the bytes of the chunks it needed.

    Args:
        user_sharding: Its sharding, or its layout in memory with one.
        tensorstore_spec: Where it is.
        global_shape: Its shape, None for the stored one.
        dtype: Its dtype, None for the stored one.
        byte_limiter: Budget for the bytes being read.
        context: TensorStore's context.
        assume_metadata: Whether TensorStore takes the metadata of the spec for the stored one.
        strict: Whether another stored shape is an error; else the array is padded with zeros or
            truncated.

    Raises:
        TypeError: `user_sharding` is not a sharding.
        ValueError: The array cannot be opened, or has another shape and `strict` is set.
    """
    sharding = as_sharding(user_sharding, "user_sharding")
    used = context or get_ts_context()
    array = await open_array(
        tensorstore_spec, open=True, assume_metadata=assume_metadata, context=used
    )
    stored = tuple(array.shape)
    shape = stored if global_shape is None else tuple(global_shape)
    if strict and shape != stored:
        raise ValueError(
            f"The stored shape is {stored}, the requested one {shape}; give strict=False to pad or "
            "truncate it."
        )
    parts: dict[Region, list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        parts.setdefault(from_index(cast(Index, index), shape), []).append(device)

    async def read(region: Region) -> tuple[HostArray, int]:
        wanted = region.intersect(whole(stored))
        nbytes = 0 if wanted is None else _chunk_bytes(array, wanted)
        async with _reserved(byte_limiter, nbytes):
            values = np.zeros(region.shape, array.dtype.numpy_dtype)
            if wanted is not None:
                values[wanted.within(region).slices] = await array[wanted.slices].read()
        return values if dtype is None else values.astype(dtype, copy=False), nbytes

    found = await run_all([read(region) for region in parts])
    kind = sharding.memory_kind
    put: Callable[..., jax.Array] = cast(Any, jax).device_put
    pieces = [
        put(values, jax.sharding.SingleDeviceSharding(device, memory_kind=kind))
        for (values, _), devices in zip(found, parts.values(), strict=True)
        for device in devices
    ]
    result = jax.make_array_from_single_device_arrays(shape, sharding, pieces)
    if getattr(user_sharding, "layout", None) is not None:
        result = put(result, user_sharding)
    return result, sum(nbytes for _, nbytes in found)


def _has_metadata(spec: Mapping[str, Any]) -> bool:
    """Return whether a spec, or one of those in it, has metadata."""
    return "metadata" in spec or any(
        _has_metadata(value) for value in spec.values() if is_json_object(value)
    )


def _chunk_bytes(array: ts.TensorStore, region: Region) -> int:
    """Return the size of the chunks that overlap a region."""
    nbytes = array.dtype.numpy_dtype.itemsize
    chunks = array.chunk_layout.read_chunk.shape
    bounds = zip(region.start, region.stop, chunks or region.shape, strict=True)
    for start, stop, chunk in bounds:
        chunk = chunk or stop  # noqa: PLW2901 - a driver without chunks
        nbytes *= (-(-stop // chunk) - start // chunk) * chunk
    return nbytes


@contextlib.asynccontextmanager
async def _reserved(limiter: Limiter | None, nbytes: int) -> AsyncGenerator[None]:
    if limiter is None:
        yield
        return
    await limiter.wait_for_bytes(nbytes)
    try:
        yield
    finally:
        await limiter.release_bytes(nbytes)
