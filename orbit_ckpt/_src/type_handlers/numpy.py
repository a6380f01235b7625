"""numpy arrays, and `bytes`, which are stored as arrays of uint8."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import jax
import numpy as np
from msgspec import structs
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import HostArray, why_not_storable
from orbit_ckpt._src.arrays.transfer import ArraySnapshot, shards_of
from orbit_ckpt._src.metadata.schema import BYTES, NUMPY_ARRAY, NUMPY_BYTES
from orbit_ckpt._src.metadata.values import ArrayMetadata
from orbit_ckpt._src.runtime.checks import as_flag
from orbit_ckpt._src.runtime.futures import Future
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.type_handlers.array_io import (
    USUAL,
    add_array,
    cast_host,
    default_save_args,
    placement,
    read_each,
    warn_of_metadata_key,
    whole_reads,
)
from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs
from orbit_ckpt._src.type_handlers.base import (
    ParamInfo,
    RestoreArgs,
    SaveArgs,
    TypeHandler,
    leaves_to_primary,
    load_batch_of,
    logical_dtype,
)
from orbit_ckpt._src.type_handlers.capabilities import (
    ArrayForm,
    ArrayStorage,
    FormHandler,
    LazyReader,
    ReadPlanner,
    SnapshotHandler,
    ValueChecker,
    check_converted,
)
from orbit_ckpt._src.type_handlers.described import array_metadata


class NumpyHandler(
    TypeHandler, ValueChecker, SnapshotHandler, FormHandler, ReadPlanner, ArrayStorage, LazyReader
):
    """Handles `np.ndarray` and `bytes`."""

    _storage = USUAL  # for subclasses that do not call `__init__`
    _copies = True

    def __init__(
        self,
        metadata_key: str | None = None,
        ocdbt_process_id: str | None = None,
        deepcopy_host_arrays: bool = True,
    ) -> None:
        """Make a handler.

        Args:
            metadata_key: See `ArrayHandler`.
            ocdbt_process_id: Letters and digits that name the database of the arrays,
                `ocdbt.process_<id>`, instead of the process's database.
            deepcopy_host_arrays: Whether a background save copies arrays before it returns. If not,
                it needs less memory, and saves what they hold when they are written: do not change
                them before it ends.

        Raises:
            ValueError: `ocdbt_process_id` has other characters.
        """
        self._storage = placement(metadata_key, ocdbt_process_id)
        self._copies = as_flag("deepcopy_host_arrays", deepcopy_host_arrays)

    @property
    def has_own_databases(self) -> bool:
        """Whether some arrays go into another database than that of the process."""
        return self._storage.database is not None

    lazy_type: type = np.ndarray

    @override
    def typestr(self) -> str:
        return NUMPY_ARRAY

    @override
    def check(self, value: object) -> str | None:
        if isinstance(value, bytes):
            return None
        if isinstance(value, np.ma.MaskedArray):
            return "its mask would be lost; save .data and .mask as two leaves"
        host: HostArray = np.asarray(value)
        return why_not_storable(host.dtype)

    @override
    def forms(self, values: Sequence[object]) -> Sequence[Hashable]:
        return [(type(value), array.shape, array.dtype) for value, array in _with_arrays(values)]

    @override
    def unusable(self, values: Sequence[object]) -> Mapping[int, str]:
        return {}

    @override
    def array_form(self, value: object) -> ArrayForm | None:
        if self._storage is not USUAL or not self._copies:
            return None
        ((_, array),) = _with_arrays([value])
        kind = _bytes_kind(value)
        return ArrayForm(
            array.shape, array.dtype, kind is None, kind, is_immutable=kind is not None
        )

    @override
    def arrays(self, values: Sequence[object]) -> Sequence[np.ndarray | jax.Array]:
        return [array for _, array in _with_arrays(values)]

    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayMetadata]:
        return array_metadata(infos, ArrayMetadata)

    @override
    def snapshot(self, values: Sequence[object]) -> Sequence[object]:
        return [value if isinstance(value, bytes) else self._snapshot(value) for value in values]

    @override
    async def serialize(
        self,
        values: Sequence[object],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,
    ) -> Sequence[Future]:
        warn_of_metadata_key(self._storage, infos)
        if leaves_to_primary(infos):
            return []
        check_converted(self, values, infos)
        for value, info, arg in zip(values, infos, default_save_args(infos, args), strict=True):
            leaf_type = _bytes_kind(value)
            if isinstance(value, bytes):
                array, arg = _snapshot(np.frombuffer(value, np.uint8)), SaveArgs()  # noqa: PLW2901 - bytes are not cast
            else:
                array = value if isinstance(value, ArraySnapshot) else self._snapshot(value)
            shape, dtype, shards = array.shape, array.dtype, array.shards
            add_array(shape, dtype, shards, info, arg, leaf_type=leaf_type, at=self._storage)
        return []

    def _snapshot(self, value: object) -> ArraySnapshot:
        taken = _snapshot(value)
        if not self._copies:
            taken.shards[:] = [structs.replace(shard, in_place=True) for shard in taken.shards]
        return taken

    @override
    async def deserialize(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[np.ndarray | bytes]:
        """Return the arrays, writable and owned by the caller.

        Raises:
            CorruptionError: A chunk is missing or damaged.
        """
        return await read_each(infos, args, _restored)

    @override
    def plan_reads(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[ArrayRead]:
        return whole_reads(infos)

    @override
    def stored_arrays(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayRead]:
        return whole_reads(infos)

    @override
    def read_now(self, info: ParamInfo, arg: RestoreArgs) -> np.ndarray | bytes:
        (read,) = whole_reads([info])
        host = load_batch_of(info).reader.read_part(read, read.regions[0])
        return _restored(host.view(logical_dtype(info, host.dtype)), info, arg)

    @override
    async def read_alone(self, info: ParamInfo, arg: RestoreArgs) -> np.ndarray | bytes:
        (value,) = await NumpyHandler.deserialize(self, [info], [arg])
        return value


def _snapshot(value: object) -> ArraySnapshot:
    host = np.asarray(value)
    return ArraySnapshot(host.shape, host.dtype, shards_of(host))


def _with_arrays(values: Sequence[object]) -> Iterator[tuple[object, np.ndarray]]:
    """Yield values with the arrays that they are stored as."""
    for value in values:
        if type(value) is np.ndarray:  # true of nearly all
            yield value, value
        else:
            is_text = isinstance(value, bytes)
            yield value, np.frombuffer(value, np.uint8) if is_text else np.asarray(value)


def _bytes_kind(value: object) -> str | None:
    """Return what is recorded of a value's class, None unless it is one of bytes."""
    if isinstance(value, np.bytes_):
        return NUMPY_BYTES
    return BYTES if isinstance(value, bytes) else None


def bytes_type(info: ParamInfo, arg: RestoreArgs) -> type[bytes] | None:
    """Return the bytes type of a leaf's restore, None to restore an array."""
    detail = load_batch_of(info).details.get(info.name)
    kind = detail.type if detail is not None else None
    as_saved = not isinstance(arg, ArrayRestoreArgs) and arg.restore_type is None
    if as_saved and kind == NUMPY_BYTES:
        return np.bytes_
    return bytes if arg.restore_type is bytes or (as_saved and kind == BYTES) else None


def _restored(host: np.ndarray, info: ParamInfo, arg: RestoreArgs) -> HostArray | bytes:
    if arg.restore_type is np.ndarray and (arg.dtype is None or arg.dtype is host.dtype):
        return host  # the common case
    kind = bytes_type(info, arg)
    if kind is not None:
        return kind(host.tobytes())
    return cast_host(host, arg.dtype, info.location)
