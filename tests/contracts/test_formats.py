"""The built-in formats keep the contract of formats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from typing_extensions import override

from orbit_ckpt import t5x
from orbit_ckpt._src.formats.base import built_in_format
from orbit_ckpt.testing import FormatContract, WritableFormatContract

SAMPLES = Path(__file__).parents[1] / "formats" / "samples"
LARGE = np.arange(1 << 18, dtype=np.float32)


class TestSafetensors(WritableFormatContract):
    has_checksums = False

    @override
    def format(self) -> Any:
        return built_in_format("safetensors")

    @override
    def contents(self) -> list[object]:
        arrays = {
            "layer.w": LARGE.reshape(512, 512).copy(),
            "layer.b": np.arange(4).astype(ml_dtypes.bfloat16),
            "scalar": np.array(2.5),
            "empty": np.zeros((0, 3), np.int16),
        }
        return [arrays, {"w": np.arange(6)[::2]}]

    @override
    def path_in(self, directory: Path, name: str) -> Path:
        return directory / f"{name}.safetensors"


class TestFlaxMsgpack(WritableFormatContract):
    has_checksums = False

    @override
    def format(self) -> Any:
        return built_in_format("flax_msgpack")

    @override
    def contents(self) -> list[object]:
        tree = {
            "params": {"w": LARGE.reshape(512, 512).copy(), "b": np.zeros((0, 3), np.int16)},
            "none": None,
            "step": 3,
            "text": "größe",
            "bytes": b"\0",
            "empty": {},
        }
        return [tree, {"w": np.arange(6), "half": np.arange(4).astype(ml_dtypes.bfloat16)}]


class TestT5X(WritableFormatContract):
    has_checksums = False

    @override
    def format(self) -> Any:
        return built_in_format("t5x")

    @override
    def contents(self) -> list[object]:
        tree = {
            "target": {"w": LARGE.copy(), "b": np.zeros((0, 3), np.int8)},
            "state": {"step": np.int32(7), "none": None, "empty": {}},
        }
        return [tree, {"target": {"w": np.arange(6)}}]

    @override
    def path_in(self, directory: Path, name: str) -> Path:
        return directory / f"checkpoint_{int(name, 36)}"


def tree_of(arrays: Mapping[str, Any]) -> Any:
    """Return the nested dicts that the descriptions of arrays stand for."""
    tree: dict[str, Any] = {}
    for name, leaf in arrays.items():
        *above, last = name.split("/")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        dtype = np.dtype(getattr(ml_dtypes, leaf["dtype"], leaf["dtype"]))
        node[last] = np.array(leaf["data"], dtype).reshape(leaf["shape"])
    return tree


class StoredSamples(FormatContract):
    """Tests of a format that other programs wrote samples of."""

    name: str
    folder: str
    step: str
    arrays: str

    @override
    def format(self) -> Any:
        return built_in_format(self.name)

    @override
    def samples(self, directory: Path) -> Mapping[Path, object]:
        expected = json.loads((SAMPLES / self.folder / "expected.json").read_text())
        path = Path(shutil.copytree(SAMPLES / self.folder / self.step, directory / self.step))
        return {path: tree_of(expected[self.step][self.arrays])}


class TestLevanter(StoredSamples):
    name = "levanter"
    folder = "levanter"
    step, arrays = "step-7", "arrays"


class TestEFormer(StoredSamples):
    name = "eformer"
    folder = "eformer"
    step, arrays = "run-10_unstructured", "arrays"


class TestTensorFlow(StoredSamples):
    name = "tf_checkpoint"
    folder = "t5x"
    step, arrays = "tf_t5_ckpt", "tf_variables"

    @override
    def format(self) -> Any:
        return t5x.TensorFlowFormat(translate=None)
