"""Jobs on checkpoints in object stores, in processes that get only URLs."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.checkpointer import distributed_statistics, file_copies
from orbit_ckpt._src.formats import bands
from orbit_ckpt._src.pytree.compare import distributed
from orbit_ckpt._src.storage import batch_write
from orbit_ckpt._src.verify import chunks, files


def state() -> dict[str, Any]:
    return {f"w{i}": np.random.default_rng(i).standard_normal((50, 60)) for i in range(8)}


@pytest.mark.slow  # starts processes and an S3 server
def test_workers_read_and_write_a_store(
    s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    modules = (chunks, files, distributed, distributed_statistics, batch_write, file_copies, bands)
    for module in modules:
        monkeypatch.setattr(module, "UNIT_BYTES", 60_000)
    ocp.save(f"{s3}/a", state())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        assert str(ocp.verify(f"{s3}/a", executor=pool)) == str(ocp.verify(f"{s3}/a"))
        ocp.convert(f"{s3}/a", f"{s3}/b", executor=pool)
        assert not ocp.diff(f"{s3}/a", f"{s3}/b", values=True, executor=pool)
        ocp.copy(f"{s3}/a", f"{s3}/c", executor=pool)
        assert ocp.statistics(f"{s3}/a", executor=pool) == ocp.statistics(f"{s3}/a")
        ocp.convert(f"{s3}/a", f"{s3}/checkpoint_1", to="t5x", executor=pool)
        assert not ocp.diff(f"{s3}/a", f"{s3}/checkpoint_1", values=True, executor=pool).changed
        ocp.convert(f"{s3}/a", tmp_path / "x.safetensors", to="safetensors", executor=pool)
    assert not ocp.diff(f"{s3}/a", tmp_path / "x.safetensors", values=True)
    report = ocp.verify(f"{s3}/b")
    assert report
    assert not report.unchecked
    assert not ocp.diff(f"{s3}/a", f"{s3}/c", values=True)


def test_what_is_in_this_processs_memory_is_read_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(batch_write, "UNIT_BYTES", 60_000)
    ocp.save("memory://jobs/a", state())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        ocp.convert("memory://jobs/a", "memory://jobs/b", executor=pool)
        ocp.convert("memory://jobs/a", "memory://jobs/checkpoint_1", to="t5x", executor=pool)
        ocp.convert("memory://jobs/b", tmp_path / "x.msgpack", to="flax", executor=pool)
        assert not ocp.diff("memory://jobs/a", "memory://jobs/b", values=True, executor=pool)
    for other in ("memory://jobs/checkpoint_1", tmp_path / "x.msgpack"):
        assert not ocp.diff("memory://jobs/a", other, values=True).changed
