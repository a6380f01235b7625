"""Python and numpy scalars, stored as arrays without dimensions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import jax
import numpy as np
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import HostArray, python_scalar, why_not_storable
from orbit_ckpt._src.arrays.transfer import shards_of
from orbit_ckpt._src.errors import TreeMismatchError
from orbit_ckpt._src.metadata.schema import SCALAR
from orbit_ckpt._src.metadata.values import ScalarMetadata
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
from orbit_ckpt._src.type_handlers.base import (
    ParamInfo,
    RestoreArgs,
    SaveArgs,
    TypeHandler,
    leaves_to_primary,
    load_batch_of,
)
from orbit_ckpt._src.type_handlers.capabilities import (
    ArrayForm,
    ArrayStorage,
    FormHandler,
    ReadPlanner,
    SnapshotHandler,
    ValueChecker,
    check_converted,
)
from orbit_ckpt._src.type_handlers.described import array_metadata

NUMPY = "numpy"
PYTHON_SCALARS = (int, float, complex)
_TOO_LARGE = "the integer does not fit into 64 bits; save it as a str"


class ScalarHandler(
    TypeHandler, ValueChecker, SnapshotHandler, FormHandler, ReadPlanner, ArrayStorage
):
    """Handles int, float, bool, complex and the scalars of numpy and ml_dtypes."""

    _storage = USUAL  # for subclasses that do not call `__init__`

    def __init__(
        self, metadata_key: str | None = None, ocdbt_process_id: str | None = None
    ) -> None:
        """Make a handler; for the arguments see `NumpyHandler`."""
        self._storage = placement(metadata_key, ocdbt_process_id)

    @property
    def has_own_databases(self) -> bool:
        """Whether some arrays go into another database than that of the process."""
        return self._storage.database is not None

    @override
    def typestr(self) -> str:
        return SCALAR

    @override
    def check(self, value: object) -> str | None:
        if isinstance(value, int) and not _fits(value):
            return _TOO_LARGE
        dtype = np.asarray(value).dtype
        return why_not_storable(dtype)

    @override
    def forms(self, values: Sequence[object]) -> Sequence[Hashable]:
        return [(type(value), _dtype_of(value)) for value in values]

    @override
    def unusable(self, values: Sequence[object]) -> Mapping[int, str]:
        numbers = ((i, value) for i, value in enumerate(values) if isinstance(value, int))
        return {i: _TOO_LARGE for i, number in numbers if not _fits(number)}

    @override
    def array_form(self, value: object) -> ArrayForm | None:
        if self._storage is not USUAL:
            return None
        host: HostArray = np.asarray(value)
        leaf_type = NUMPY if isinstance(value, np.generic) else None
        return ArrayForm((), host.dtype, leaf_type=leaf_type, is_immutable=True)

    @override
    def arrays(self, values: Sequence[object]) -> Sequence[np.ndarray | jax.Array]:
        return list(map(np.asarray, values))

    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[ScalarMetadata]:
        return array_metadata(infos, ScalarMetadata)

    @override
    def snapshot(self, values: Sequence[object]) -> Sequence[object]:
        return values  # they are immutable

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
            host = np.asarray(value)
            leaf_type = NUMPY if isinstance(value, np.generic) else None
            shards, at = shards_of(host), self._storage
            add_array((), host.dtype, shards, info, arg, leaf_type=leaf_type, at=at)
        return []

    @override
    async def deserialize(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[object]:
        """Return scalars of the saved or requested type.

        Raises:
            TreeMismatchError: A scalar was requested where an array with dimensions is stored.
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


def _dtype_of(value: object) -> object:
    return getattr(value, "dtype", None)


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _restored(host: np.ndarray, info: ParamInfo, arg: RestoreArgs) -> object:
    if host.ndim:
        raise TreeMismatchError(
            f"{info.label}: a scalar was asked for, an array of shape {host.shape} is stored; "
            "ask for np.ndarray or jax.Array.",
            paths=[info.label],
        )
    value = cast_host(host, arg.dtype, info.location)
    if isinstance(arg.restore_type, type):
        convert: Callable[[object], object] = arg.restore_type
        if issubclass(arg.restore_type, np.generic):
            return cast_host(value, arg.dtype or convert, info.location)[()]
        return convert(python_scalar(value))
    detail = load_batch_of(info).details.get(info.name)
    if detail is not None and detail.type == NUMPY:
        return value[()]
    return python_scalar(value)
