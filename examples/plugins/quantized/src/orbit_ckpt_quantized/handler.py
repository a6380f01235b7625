"""The type handler: two arrays per leaf, written and read by the handler of JAX arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar, cast

import jax
from typing_extensions import override

from orbit_ckpt import ArrayRestoreArgs, LazyArray
from orbit_ckpt.metadata import ArrayMetadata
from orbit_ckpt.type_handlers import (
    ArrayHandler,
    ArrayRead,
    Future,
    LazyComposer,
    OpenArray,
    ParamInfo,
    ReadPlanner,
    RestoreArgs,
    SaveArgs,
    TypeHandler,
    ValueChecker,
    get_type_handler,
)
from orbit_ckpt_quantized.array import QuantizedArray, QuantizedRestoreArgs

T = TypeVar("T")

_PARTS = ("values", "scales")


class QuantizedHandler(TypeHandler, ValueChecker, ReadPlanner, LazyComposer):
    """Handles `QuantizedArray`.

    The arrays are called like the leaf, with `.values` and `.scales` appended.
    """

    types: ClassVar[tuple[type, ...]] = (QuantizedArray,)

    def __init__(self) -> None:
        self._arrays = ArrayHandler()

    @override
    def typestr(self) -> str:
        return "orbit_ckpt_quantized.QuantizedArray"

    @override
    def check(self, value: object) -> str | None:
        leaf = cast(QuantizedArray, value)
        for name in _PARTS:
            part = getattr(leaf, name)
            handler = get_type_handler(type(part))
            problem = handler.check(part) if isinstance(handler, ValueChecker) else None
            if problem is not None:
                return f"{name}: {problem}"
        if len(leaf.scales.shape) != len(leaf.shape) or any(
            n not in (1, m) for n, m in zip(leaf.scales.shape, leaf.shape, strict=True)
        ):
            return f"scales of shape {leaf.scales.shape} do not fit values of shape {leaf.shape}"
        return None

    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayMetadata]:
        """Return the metadata of the values, under the names of the leaves."""
        found = await self._arrays.metadata([_part(info, "values") for info in infos])
        return [
            ArrayMetadata(info.name, one.directory, one.shape, one.sharding, one.dtype, one.storage)
            for info, one in zip(infos, found, strict=True)
        ]

    @override
    async def serialize(
        self,
        values: Sequence[object],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,
    ) -> Sequence[Future]:
        futures: list[Future] = []
        for value, info, arg in zip(values, infos, args or [SaveArgs()] * len(infos), strict=True):
            for name in _PARTS:
                part = getattr(value, name)
                handler = get_type_handler(type(part))  # which is another one for lazy arrays
                # the integers are what they are; a dtype is for the scales
                wanted = replace(arg, dtype=None) if name == "values" else arg
                futures += await handler.serialize([part], [_part(info, name)], [wanted])
        return futures

    @override
    async def deserialize(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[QuantizedArray]:
        parts, part_args = self._divided(infos, args)
        found = await self._arrays.deserialize(parts, part_args)
        return [QuantizedArray(*pair) for pair in zip(found[::2], found[1::2], strict=True)]

    @override
    def plan_reads(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[Sequence[ArrayRead]]:
        reads = self._arrays.plan_reads(*self._divided(infos, args))
        return list(zip(reads[::2], reads[1::2], strict=True))

    @override
    def lazy_leaf(self, info: ParamInfo, arg: RestoreArgs, open_array: OpenArray) -> QuantizedArray:
        parts, args = self._divided([info], [arg])
        values, scales = map(open_array, parts, args)
        return QuantizedArray(cast(LazyArray, values), cast(LazyArray, scales))

    def _divided(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None
    ) -> tuple[list[ParamInfo], list[RestoreArgs]]:
        """Return the arrays of leaves, the two of a leaf after each other, and their arguments."""
        parts = [_part(info, name) for info in infos for name in _PARTS]
        wanted = args or [RestoreArgs()] * len(infos)
        stored = self._arrays.stored_arrays(parts)
        shapes = [read.layout.shape for read in stored]
        pairs = zip(shapes[::2], shapes[1::2], strict=True)
        divided = [
            one for arg, pair in zip(wanted, pairs, strict=True) for one in _part_args(arg, *pair)
        ]
        return parts, divided


def _part(info: ParamInfo, name: str) -> ParamInfo:
    return info.replace(name=f"{info.name}.{name}")


def _part_args(
    arg: RestoreArgs, shape: tuple[int, ...], scales_shape: tuple[int, ...]
) -> tuple[RestoreArgs, RestoreArgs]:
    """Return how the values and the scales of a leaf are restored."""
    if not isinstance(arg, ArrayRestoreArgs):
        return RestoreArgs(), RestoreArgs(dtype=arg.dtype)
    sharding = arg.sharding
    if arg.mesh is not None and arg.mesh_axes is not None:
        sharding = jax.NamedSharding(arg.mesh, arg.mesh_axes)
    values = ArrayRestoreArgs(sharding=sharding, shape=arg.shape, strict=arg.strict)
    scales = ArrayRestoreArgs(sharding=_of_scales(sharding, shape, scales_shape), dtype=arg.dtype)
    if not isinstance(arg, QuantizedRestoreArgs):
        return values, scales
    return arg.values or values, arg.scales or scales


def _of_scales(
    sharding: T, shape: tuple[int, ...], scales_shape: tuple[int, ...]
) -> T | jax.NamedSharding:
    """Return the sharding that keeps scales with the values that they belong to."""
    if not isinstance(sharding, jax.NamedSharding):
        return sharding
    axes = [*sharding.spec, *[None] * (len(shape) - len(sharding.spec))]
    own = [axis if n == m else None for axis, n, m in zip(axes, scales_shape, shape, strict=True)]
    return jax.NamedSharding(sharding.mesh, jax.P(*own))
