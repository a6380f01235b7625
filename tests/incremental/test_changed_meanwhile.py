"""Arrays that their owner changes while a save in the foreground reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import incremental

SHAPES = {"large": (64, 1024), "small": (1024,)}
KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "numpy": lambda array: array,
    "strided": lambda array: array[::-1],
    "device_put": lambda array: jax.device_put(array, may_alias=True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SHAPES)
def test_a_digest_is_that_of_the_bytes_that_are_written(
    size: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = _aligned(SHAPES[size])
    leaf = KINDS[kind](array)

    def then_change(hash_chunks: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def hash_and_change(chunks: Any) -> Any:
            found = hash_chunks(chunks)
            array[...] = 7  # after it was hashed, before it is written
            return found

        return hash_and_change

    with monkeypatch.context() as patch:
        for name in ("digest_of", "digests_of"):
            patch.setattr(incremental, name, then_change(getattr(incremental, name)))
        ocp.save(tmp_path / "0", {"w": leaf}, base=tmp_path / "none")
    array[...] = 3  # as it was when it was hashed
    ocp.save(tmp_path / "1", {"w": leaf}, base=tmp_path / "0")
    np.testing.assert_array_equal(ocp.load(tmp_path / "1")["w"], array)
    assert ocp.verify(tmp_path / "0").is_intact


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of threes whose memory JAX shares."""
    nbytes = int(np.prod(shape)) * 4
    memory = np.empty(nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + nbytes].view(np.float32).reshape(shape)
    array[...] = 3
    return array
