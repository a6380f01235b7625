"""Type handlers with one bug each, and the tests that must find it."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import override

from orbit_ckpt.testing.type_handlers import TypeHandlerContract
from orbit_ckpt.type_handlers import NumpyHandler


class BrokenNumpy(TypeHandlerContract):
    """Tests of a broken handler of NumPy arrays."""

    def handler(self) -> Any:
        raise NotImplementedError

    @override
    def values(self) -> list[object]:
        return [np.arange(12.0), np.arange(300) * 2, np.array(2.5), np.zeros((0, 3), np.int16)]


class SinglePrecision(NumpyHandler):
    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return [np.asarray(v, np.float32) for v in await super().deserialize(infos, args)]


class TestWrongDtype(BrokenNumpy):
    """Broken promise: What is loaded is what was saved: types, dtypes, shapes, shardings, bits."""

    def handler(self) -> Any:
        return SinglePrecision()
