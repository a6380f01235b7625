"""Intervals keep the contract of type handlers."""

from __future__ import annotations

from typing_extensions import override

from orbit_ckpt.testing import SeveralProcessesContract, TypeHandlerContract
from orbit_ckpt.type_handlers import TypeHandler
from orbit_ckpt_example import Interval, IntervalHandler


class TestIntervalHandler(TypeHandlerContract, SeveralProcessesContract):
    @override
    def handler(self) -> TypeHandler:
        return IntervalHandler()

    @override
    def values(self) -> list[object]:
        return [Interval(0.0, 1.0), Interval(-0.0, float("nan")), Interval(float("-inf"), 1e-300)]
