"""The built-in item handlers keep the contract of item handlers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from google.protobuf.struct_pb2 import Struct
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt.testing import ItemHandlerContract, SeveralProcessesContract
from tests.support import put


class TestJsonHandler(ItemHandlerContract, SeveralProcessesContract):
    @override
    def handler(self) -> Any:
        return ocp.JsonHandler()

    @override
    def values(self) -> list[object]:
        return [{"lr": 0.1, "layers": [1, 2, {"name": "ä"}], "none": None}, [], 3, "text"]

    @override
    def save_args(self, value: Any) -> Any:
        return ocp.args.JsonSave(value)


class TestProtoHandler(ItemHandlerContract, SeveralProcessesContract):
    @override
    def handler(self) -> Any:
        return ocp.ProtoHandler()

    @override
    def values(self) -> list[object]:
        values = Struct(), Struct()
        values[0].update({"optimizer": "adam", "beta": 0.9})
        return list(values)

    @override
    def save_args(self, value: Any) -> Any:
        return ocp.args.ProtoSave(value)

    @override
    def restore_args(self) -> Any:
        return ocp.args.ProtoRestore(Struct)

    @override
    def change(self, content: Any) -> None:
        content.Clear()
        content["changed"] = True


class TestPyTreeHandler(ItemHandlerContract):
    @override
    def handler(self) -> Any:
        return ocp.PyTreeHandler()

    @override
    def values(self) -> list[object]:
        return [
            {"w": jnp.arange(8.0), "n": np.arange(3), "i": [1, 2.5], "s": "text"},
            {"w": put(np.arange(16.0, dtype=np.float32), "x", x=8), "empty": {}},
        ]

    @override
    def save_args(self, value: Any) -> Any:
        return ocp.args.PyTreeSave(value)

    @override
    def targets(self, value: Any) -> Any:
        args = jax.tree.map(lambda _: ocp.RestoreArgs(), value)
        return [(ocp.args.PyTreeRestore(restore_args=args), value)]


class TestPyTreeHandlerOnSeveralProcesses(TestPyTreeHandler, SeveralProcessesContract):
    @override
    def values(self) -> list[object]:
        return [{"n": np.arange(300), "i": [1, 2.5], "s": "text"}, {"n": np.zeros((0, 2))}]


class TestStandardHandler(TestPyTreeHandler):
    @override
    def handler(self) -> Any:
        return ocp.StandardHandler()

    @override
    def save_args(self, value: Any) -> Any:
        return ocp.args.StandardSave(value)

    @override
    def targets(self, value: Any) -> Any:
        return [(ocp.args.StandardRestore(value), value)]


class TestArrayHandler(ItemHandlerContract):
    @override
    def handler(self) -> Any:
        return ocp.ArrayCheckpointHandler()

    @override
    def values(self) -> list[object]:
        return [jnp.arange(8.0), np.arange(3), put(np.arange(8), "x", x=8), jnp.zeros((0, 2)), 2.5]

    @override
    def save_args(self, value: Any) -> Any:
        return ocp.args.ArraySave(value)

    @override
    def targets(self, value: Any) -> Any:
        wanted = ocp.RestoreArgs(restore_type=np.ndarray)
        return [(ocp.args.ArrayRestore(restore_args=wanted), np.asarray(value))]


class TestJaxRandomKeyHandler(ItemHandlerContract):
    @override
    def handler(self) -> Any:
        return ocp.JaxRandomKeyHandler()

    @override
    def values(self) -> list[object]:
        return [jax.random.key(0), jax.random.key(1, impl="rbg"), jax.random.PRNGKey(2)]

    @override
    def save_args(self, value: Any) -> Any:
        return ocp.args.JaxRandomKeySave(value)


class TestNumpyRandomKeyHandler(ItemHandlerContract, SeveralProcessesContract):
    @override
    def handler(self) -> Any:
        return ocp.NumpyRandomKeyHandler()

    @override
    def values(self) -> list[object]:
        states = (np.random.RandomState(3).get_state(legacy=legacy) for legacy in (True, False))
        return list(states)

    @override
    def save_args(self, value: Any) -> Any:
        return ocp.args.NumpyRandomKeySave(value)


@dataclass
class Reader:
    """A data iterator."""

    state: Any = None

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class TestStatefulHandler(ItemHandlerContract):
    @override
    def handler(self) -> Any:
        return ocp.StatefulHandler()

    @override
    def values(self) -> list[object]:
        return [Reader({"next": 5, "seen": [1, 2]}), Reader(b"\0bytes"), Reader(np.arange(3))]

    @override
    def save_args(self, value: Any) -> Any:
        return ocp.args.StatefulSave(value)

    @override
    def restore_args(self) -> Any:
        return ocp.args.StatefulRestore(Reader())


class TestCompositeHandler(ItemHandlerContract):
    @override
    def handler(self) -> Any:
        return ocp.CompositeHandler()

    @override
    def values(self) -> list[object]:
        return [{"params": {"w": jnp.arange(8.0)}, "config": {"lr": 1}}, {"config": {"lr": 2}}]

    @override
    def save_args(self, value: Any) -> Any:
        items: dict[str, Any] = {"config": ocp.args.JsonSave(value["config"])}
        if "params" in value:
            items["params"] = ocp.args.StandardSave(value["params"])
        return ocp.args.Composite(**items)

    @override
    def expect_same(self, found: Any, expected: Any, where: str = "what was loaded") -> None:
        super().expect_same(dict(found), dict(expected), where)
