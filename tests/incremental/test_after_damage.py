"""A run in which a step is damaged: later steps share nothing with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import CorruptionError
from orbit_ckpt.testing.comparison import expect_same
from tests.incremental.test_incremental import new_bytes, noise
from tests.support import damage_chunk


@pytest.mark.parametrize("fallback", [True, False])
def test_saves_after_damage_was_found_share_nothing_with_earlier_steps(
    fallback: bool, tmp_path: Path
) -> None:
    frozen = noise(128, 256)

    def state(step: int) -> dict[str, Any]:
        return {"frozen": frozen, "trained": noise(16, 256) + step}

    options = ocp.CheckpointManagerOptions(incremental=True, full_every=50)
    with ocp.CheckpointManager(tmp_path, options=options) as run:
        for step in range(4):
            run.save(step, args=ocp.args.StandardSave(state(step)))
        run.wait_until_finished()
        intact = run.restore(2)
        damage_chunk(next(tmp_path.glob("3/*/manifest.ocdbt")).parent, "trained/c/0/0")
    with ocp.CheckpointManager(tmp_path, options=options) as run:
        if fallback:
            expect_same(run.restore(fallback=True), intact)
            assert set(run.refused) == {3}
        else:
            with pytest.raises(CorruptionError):
                run.restore()
            expect_same(run.restore(2), intact)
        later = {step: state(step) for step in (4, 5)}
        for step, tree in later.items():
            run.save(step, args=ocp.args.StandardSave(tree))
        run.wait_until_finished()
        for step, tree in later.items():
            expect_same(run.restore(step), tree)
        earlier = [tmp_path / f"{step}" for step in range(4)]
        first, second = (tmp_path / f"{step}" for step in later)
        assert new_bytes(first, *earlier) == new_bytes(first)
        assert new_bytes(second, *earlier) == new_bytes(second)
        assert new_bytes(second, first) < new_bytes(second) / 2


def test_a_step_that_shares_a_byte_damaged_before_the_save_says_so(tmp_path: Path) -> None:
    """What is shared is not read again; its checksum is that of when it was written."""
    frozen = noise(128, 256)
    ocp.save(tmp_path / "0", {"frozen": frozen}, base=tmp_path / "none")
    file = damage_chunk(tmp_path / "0", "frozen/c/0/0")
    ocp.save(tmp_path / "1", {"frozen": frozen, "more": 1}, base=tmp_path / "0")
    with pytest.raises(CorruptionError, match="frozen") as caught:
        ocp.load(tmp_path / "1")
    assert Path(str(caught.value.file)).name == Path(file).name  # the one that both have
    assert not ocp.verify(tmp_path / "1").is_intact
