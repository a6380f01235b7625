"""Intervals as leaves of checkpoints; a template of packages with a type handler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from orbit_ckpt.type_handlers import NumpyHandler, ParamInfo, RestoreArgs, SaveArgs


@dataclass(frozen=True)
class Interval:
    """A value of your own, which is a leaf of trees because JAX does not know its class."""

    low: float
    high: float


class IntervalHandler(NumpyHandler):
    """Saves an `Interval` as an array of two numbers."""

    types: ClassVar[tuple[type, ...]] = (Interval,)
    """The classes that it handles; subclasses of them are included."""

    @override
    def typestr(self) -> str:
        """Return the name that checkpoints record; it must never change."""
        return "orbit_ckpt_example.Interval"

    @override
    async def serialize(
        self,
        values: Sequence[Any],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,
    ) -> Sequence[Any]:
        """Write intervals; called once with all of a tree."""
        arrays = [np.array([value.low, value.high]) for value in values]
        return await super().serialize(arrays, infos, args)

    @override
    async def deserialize(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[Any]:
        """Read intervals."""
        return [Interval(*map(float, array)) for array in await super().deserialize(infos)]
