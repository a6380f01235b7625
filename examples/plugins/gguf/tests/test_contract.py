"""GGUF keeps the contract of formats that are read and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from typing_extensions import override

from orbit_ckpt.testing import WritableFormatContract
from orbit_ckpt_gguf import GGUFFormat


class TestGGUFFormat(WritableFormatContract):
    has_checksums = False

    @override
    def format(self) -> Any:
        return GGUFFormat()

    @override
    def contents(self) -> list[object]:
        arrays = {
            "blk.0.w": np.arange(1 << 18, dtype=np.float32).reshape(512, 512),
            "blk.0.b": np.arange(4).astype(ml_dtypes.bfloat16),
            "half": np.arange(6, dtype=np.float16).reshape(1, 2, 3),
            "scalar": np.array(2.5),
            "empty": np.zeros((0, 3), np.int16),
        }
        return [arrays, {"w": np.arange(6)[::2]}]

    @override
    def unsupported(self) -> list[object]:
        return [
            {"bad": leaf} for leaf in ("text", np.arange(3, dtype=np.uint8), np.zeros((1,) * 5))
        ]

    @override
    def path_in(self, directory: Path, name: str) -> Path:
        return directory / f"{name}.gguf"
