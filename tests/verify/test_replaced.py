"""`verify` of a checkpoint that other processes replace or delete while it is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.verify.verifier import Verifier
from orbit_ckpt.errors import CheckpointError, CheckpointNotFoundError, StorageError

IN_PLACE = ocp.AtomicityOptions(mode=ocp.AtomicityMode.COMMIT_FILE)


def save(path: Path, seed: int, *, in_place: bool = False) -> None:
    options = IN_PLACE if in_place else ocp.AtomicityOptions()
    values = np.random.default_rng(seed).standard_normal(500)
    ocp.Checkpointer(ocp.PyTreeHandler(), atomicity_options=options).save(
        path, args=ocp.args.PyTreeSave({"w": values, "name": str(seed)}), force=True
    )


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what has something done once `verify` has read the manifest of a checkpoint."""

    def install(act: Callable[[], object], *, times: int = 1) -> None:
        real = Verifier._check_recorded  # pyright: ignore[reportPrivateUsage] - between two reads
        left = times

        async def acting(*args: object) -> None:
            nonlocal left
            if left:
                left -= 1
                act()
            await real(*args)  # pyright: ignore[reportArgumentType] - as they were

        monkeypatch.setattr(Verifier, "_check_recorded", acting)

    return install


@pytest.mark.parametrize("in_place", [False, True])
def test_a_checkpoint_that_is_replaced_is_checked_again(
    tmp_path: Path, between: Callable[..., None], in_place: bool
) -> None:
    save(tmp_path / "c", 1)
    between(lambda: save(tmp_path / "c", 2, in_place=in_place))
    report = ocp.verify(tmp_path / "c")
    assert report.is_intact, report
    assert (report.leaves, report.unchecked) == (2, ())


def test_an_item_that_is_replaced_is_checked_again(
    tmp_path: Path, between: Callable[..., None]
) -> None:
    items = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    items.save(tmp_path / "c", args=ocp.args.Composite(p=ocp.args.StandardSave({"w": np.ones(9)})))
    between(lambda: ocp.save(tmp_path / "c" / "p", {"w": np.zeros(700)}, overwrite=True))
    assert ocp.verify(tmp_path / "c").is_intact


def test_steps_of_a_run_that_are_replaced_or_deleted_are_no_damage(
    tmp_path: Path, between: Callable[..., None]
) -> None:
    for step in (1, 2, 3):
        save(tmp_path / str(step), step)

    def train() -> None:
        shutil.rmtree(tmp_path / "1")
        shutil.rmtree(tmp_path / "2")
        save(tmp_path / "3", 7)

    between(train)
    report = ocp.verify(tmp_path)
    assert report.is_intact, report
    assert report.checkpoints == (tmp_path / "3",)
    assert [one.count for one in report.unchecked] == [2]


def test_a_checkpoint_that_is_deleted_is_not_found(
    tmp_path: Path, between: Callable[..., None]
) -> None:
    save(tmp_path / "c", 1)
    between(lambda: shutil.rmtree(tmp_path / "c"))
    with pytest.raises(CheckpointNotFoundError, match="deleted"):
        ocp.verify(tmp_path / "c")


def test_a_checkpoint_that_is_replaced_again_and_again_is_an_error(
    tmp_path: Path, between: Callable[..., None]
) -> None:
    save(tmp_path / "c", 1)
    between(lambda: save(tmp_path / "c", 2), times=100)
    with pytest.raises(StorageError, match="replaced the checkpoint 5 times"):
        ocp.verify(tmp_path / "c")


def test_damage_of_a_checkpoint_that_stays_is_reported(tmp_path: Path) -> None:
    save(tmp_path / "c", 1)
    (tmp_path / "c" / "_METADATA").write_bytes(b"{}")
    assert [one.file for one in ocp.verify(tmp_path / "c").damage] == [
        str(tmp_path / "c" / "_METADATA")
    ]
    with pytest.raises(CheckpointError):
        ocp.load(tmp_path / "c")
