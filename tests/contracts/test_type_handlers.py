"""The built-in type handlers keep the contract of type handlers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from typing_extensions import override

from orbit_ckpt import type_handlers
from orbit_ckpt.testing import SeveralProcessesContract, TypeHandlerContract
from tests.support import put

GRID = np.arange(64, dtype=np.float32).reshape(8, 8)


class TestArrayHandler(TypeHandlerContract):
    @override
    def handler(self) -> type_handlers.TypeHandler:
        return type_handlers.ArrayHandler()

    @override
    def values(self) -> list[object]:
        return [
            put(GRID, "x", x=8),
            put(GRID + 1, "y", "x", x=4, y=2),
            put(GRID, x=2),
            jnp.float32(1.5),
            jnp.zeros((3, 0)),
            jnp.arange(300, dtype=jnp.bfloat16),
            jnp.arange(8, dtype=jnp.int4),
        ]


class TestArrayHandlerWithKeys(TypeHandlerContract):
    @override
    def handler(self) -> type_handlers.TypeHandler:
        return type_handlers.ArrayHandler()

    @override
    def values(self) -> list[object]:
        return [
            jax.random.key(0),
            jax.random.key(1, impl="rbg"),
            jax.random.split(jax.random.key(2), 8),
            jax.random.PRNGKey(3),
        ]


class TestSingleReplicaArrayHandler(TestArrayHandler):
    @override
    def handler(self) -> type_handlers.TypeHandler:
        return type_handlers.SingleReplicaArrayHandler()


class TestNumpyHandler(TypeHandlerContract, SeveralProcessesContract):
    @override
    def handler(self) -> type_handlers.TypeHandler:
        return type_handlers.NumpyHandler()

    @override
    def values(self) -> list[object]:
        return [
            np.arange(12.0),
            GRID.copy()[::2, ::-1].T,
            np.array(2.5),
            np.zeros((0, 3), np.int16),
            np.arange(4).astype(ml_dtypes.float8_e4m3fn),
            np.array([258], ">i4"),
            np.array(["NaT", "2024-02-29"], "datetime64[D]"),
            b"bytes\0",
            b"",
        ]


class TestScalarHandler(TypeHandlerContract, SeveralProcessesContract):
    @override
    def handler(self) -> type_handlers.TypeHandler:
        return type_handlers.ScalarHandler()

    @override
    def values(self) -> list[object]:
        numbers: list[object] = [1, True, -0.0, float("nan"), 2**63 - 1, complex("nan-infj")]
        return [*numbers, np.float32(3), ml_dtypes.bfloat16(2), np.bool_(True)]

    @override
    def types(self) -> list[type]:
        return [int, float, complex, np.generic]


class TestStringHandler(TypeHandlerContract, SeveralProcessesContract):
    @override
    def handler(self) -> type_handlers.TypeHandler:
        return type_handlers.StringHandler()

    @override
    def values(self) -> list[object]:
        return ["", "größe \N{SNOWMAN}", "x" * 10_000, np.str_("text"), "\ud800"]

    @override
    def types(self) -> list[type]:
        return [str]
