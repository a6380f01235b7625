"""Arrays that are several leaves of a tree: what they take on the disk, and what is reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.testing.comparison import expect_same
from orbit_ckpt.type_handlers import ArrayHandler, create_type_handler_registry
from tests.incremental.test_incremental import new_bytes, noise
from tests.items.test_staging_options import Log
from tests.support import put


def test_tied_arrays_count_once_when_a_file_is_mostly_dead(tmp_path: Path) -> None:
    embedding = noise(256, 256)
    state = {"embed": embedding, "head": embedding, "trained": noise(384, 256)}
    ocp.save(tmp_path / "0", state, base=tmp_path / "none")
    changed = {**state, "trained": noise(384, 256)}  # 2/5 of the file stay live
    handle = ocp.save_async(tmp_path / "1", changed, base=tmp_path / "0")
    handle.result()
    assert handle.progress.nbytes == handle.progress.total_nbytes
    assert handle.reused.referred == 0
    assert 0.8 * embedding.nbytes < handle.reused.copied < 1.1 * embedding.nbytes
    written = embedding.nbytes + state["trained"].nbytes
    assert new_bytes(tmp_path / "1", tmp_path / "0") < 1.02 * written  # once, also in the copy
    shutil.rmtree(tmp_path / "0")
    expect_same(ocp.load(tmp_path / "1"), changed)


@pytest.mark.parametrize("background", [False, True])
def test_every_leaf_that_is_not_written_is_reported_as_written(
    background: bool, tmp_path: Path
) -> None:
    tied, frozen = jnp.asarray(noise(256, 256)) * 1, put(noise(256, 256), "x", x=8) * 2
    log = Log()
    registry = create_type_handler_registry((jax.Array, ArrayHandler(callback=log)))
    options = ocp.CheckpointManagerOptions(incremental=True, enable_async_checkpointing=background)
    handlers = {"state": ocp.StandardHandler(type_handler_registry=registry)}
    with ocp.CheckpointManager(tmp_path, options=options, item_handlers=handlers) as run:
        for step in range(2):
            log.lines.clear()
            tree = {"embed": tied, "head": tied, "frozen": frozen, "trained": jnp.ones(9) * step}
            items = ocp.args.Composite(state=ocp.args.StandardSave(tree))
            run.save(step, args=items)
            run.wait_until_finished()
            for name in tree:
                events = [line.split()[0] for line in log.lines if f"'{name}'" in line]
                assert sorted(events) == ["transfer", "transferred", "write", "written"], name
                assert events.index("write") < events.index("written")
