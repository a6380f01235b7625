"""Specs with which TensorStore opens the arrays of a checkpoint, under Orbax's names."""

from __future__ import annotations

import json
from typing import Any

from orbit_ckpt._src.arrays.dtypes import DType, as_dtype, is_prng_dtype, logical_name
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.storage.layout import process_directory
from orbit_ckpt._src.storage.ocdbt import read_spec, store_spec
from orbit_ckpt._src.storage.ocdbt_encode import MAX_INLINE_BYTES, MAX_NODE_BYTES
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.type_handlers.array_io import plan_array
from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs, SaveArgs

Spec = dict[str, Any]

_COALESCED_READS = {
    "experimental_read_coalescing_threshold_bytes": 1_000_000,
    "experimental_read_coalescing_merged_bytes": 500_000_000_000,
    "experimental_read_coalescing_interval": "1ms",
}
_CONFIG = {
    "max_inline_value_bytes": MAX_INLINE_BYTES,
    "max_decoded_node_bytes": MAX_NODE_BYTES,
    "manifest_kind": "single",
}


def get_json_tspec_read(
    info: ParamInfo,
    use_ocdbt: bool,
    metadata_key: str | None = None,
    raise_array_data_missing_error: bool = True,
) -> Spec:
    """Return the spec with which `tensorstore.open` opens an array for reading.

    Open a spec of a database with a context of `get_ts_context`, which has its cache.

    Args:
        info: The name and directory of the array, and whether it is zarr3.
        use_ocdbt: Whether it is in a database.
        metadata_key: Name of its metadata document, if it is not the usual one.
        raise_array_data_missing_error: Whether a missing chunk is an error; else it is zeros.
    """
    return _array_spec(info, _kvstore(info, use_ocdbt=use_ocdbt), metadata_key) | {
        "fill_missing_data_reads": not raise_array_data_missing_error
    }


def get_json_tspec_write(  # noqa: PLR0913, PLR0917 - Orbax's signature
    info: ParamInfo,
    use_ocdbt: bool,
    global_shape: Shape,
    local_shape: Shape,
    dtype: DType,
    process_index: int | str | None = None,
    metadata_key: str | None = None,
    arg: SaveArgs | None = None,
) -> Spec:
    """Return the spec with which `tensorstore.open` creates an array and opens it for writing.

    Open a spec of a database with a context of `get_ts_context`, which has its cache.

    Args:
        info: The name and directory of the array, and how to store it.
        use_ocdbt: Whether it goes into a database.
        global_shape: Shape of the array.
        local_shape: Shape of the part that one device writes, at most a chunk.
        dtype: The dtype of its values.
        process_index: Names the database of a process, below the directory.
        metadata_key: Name of its metadata document, if not the usual one.
        arg: The dtype to store and the size of chunks.

    Raises:
        TypeError: TensorStore cannot write the dtype.
        ValueError: The shapes or the size of chunks do not fit.
    """
    given = as_dtype(dtype)
    target = given if arg is None or arg.dtype is None else as_dtype(arg.dtype)
    if logical_name(target) is not None:
        raise TypeError(
            f"{info.label}: TensorStore cannot write {target}; save it with a checkpointer, or as "
            "another dtype."
        )
    plan = plan_array(tuple(global_shape), given, tuple(local_shape), info, arg or SaveArgs(), None)
    kvstore = _kvstore(info, use_ocdbt=use_ocdbt, process=process_index)
    if use_ocdbt:
        kvstore |= {
            "target_data_file_size": info.data_file_bytes,
            "config": _CONFIG,
            "assume_config": True,
        }
    stored = plan.layout.dtype
    spec = _array_spec(info, kvstore, metadata_key) | {
        "store_data_equal_to_fill_value": True,
        "metadata": json.loads(plan.document),
        "dtype": stored.name,
    }
    return spec if stored == given else {"driver": "cast", "base": spec, "dtype": given.name}


def get_cast_tspec_serialize(tspec: Spec, value: Any, args: SaveArgs) -> Spec:
    """Return a spec that converts values to the dtype to store.

    Args:
        tspec: The spec of the array, which is given that dtype.
        value: An array of the dtype to convert.
        args: Has the dtype to store; None for that of the array.
    """
    given = as_dtype(value.dtype).name
    tspec["dtype"] = given if args.dtype is None else as_dtype(args.dtype).name
    return {"driver": "cast", "base": tspec, "dtype": given}


def get_cast_tspec_deserialize(tspec: Spec, args: RestoreArgs) -> Spec:
    """Return a spec that converts stored values to the dtype to restore, if one is given."""
    if args.dtype is None or is_prng_dtype(args.dtype):
        return tspec
    return {"driver": "cast", "base": tspec, "dtype": as_dtype(args.dtype).name}


def _array_spec(info: ParamInfo, kvstore: Spec, metadata_key: str | None) -> Spec:
    spec = {
        "driver": "zarr3" if info.use_zarr3 else "zarr",
        "kvstore": kvstore,
        "recheck_cached_data": False,
        "recheck_cached_metadata": False,
    }
    return spec if metadata_key is None else {**spec, "metadata_key": metadata_key}


def _kvstore(info: ParamInfo, *, use_ocdbt: bool, process: int | str | None = None) -> Spec:
    directory = resolve_path(info.parent_dir)
    if not use_ocdbt:
        return store_spec(directory, info.name)
    if process is not None:
        directory /= process_directory(process)
    kvstore = read_spec(directory) | {"path": info.name, "cache_pool": "cache_pool#ocdbt"}
    return kvstore | _COALESCED_READS if isinstance(directory, StorePath) else kvstore
