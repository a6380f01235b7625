"""The built-in type handlers keep the contract of type handlers."""

from __future__ import annotations

import numpy as np

from orbit_ckpt import type_handlers
from orbit_ckpt.testing.type_handlers import TypeHandlerContract


class TestNumpyHandler(TypeHandlerContract):
    def handler(self) -> type_handlers.NumpyHandler:
        return type_handlers.NumpyHandler()

    def values(self) -> list[object]:
        return [np.arange(12.0), np.array(2.5), np.zeros((0, 3), np.int16), b"text"]
