"""Checkpoints of Levanter: a stored sample, made ones and damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    TreeMismatchError,
)
from tests.formats.zarr_samples import SAMPLES, check_arrays, mark, named_leaves, write_array
from tests.support import make_mesh

STEP = SAMPLES / "levanter" / "step-7"
EXPECTED = json.loads((SAMPLES / "levanter" / "expected.json").read_text())["step-7"]


def copy_step(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STEP, tmp_path / "step-7"))


def test_the_sample_has_the_values_that_were_saved() -> None:
    check_arrays(named_leaves(ocp.load(STEP)), EXPECTED["arrays"])
    assert ocp.metadata(STEP).custom_metadata == EXPECTED["metadata.json"]


@pytest.mark.parametrize("part", ["opt_state", "opt_state/1", "model/layers/0"])
def test_a_directory_is_a_part_of_the_tree(part: str) -> None:
    expected = {
        name.removeprefix(f"{part}/"): value
        for name, value in EXPECTED["arrays"].items()
        if name.startswith(f"{part}/")
    }
    check_arrays(named_leaves(ocp.load(STEP / part)), expected)


def test_the_directory_of_an_array_is_that_array() -> None:
    assert ocp.load(STEP / "step") == 7
    assert ocp.load(STEP / "model" / "layers" / "0" / "weight").shape == (4, 3)


def test_a_target_makes_lists_tuples_numbers_and_jax_arrays(tmp_path: Path) -> None:
    sharding = jax.NamedSharding(make_mesh(x=2), jax.P("x"))
    layer = {
        "weight": jax.ShapeDtypeStruct((4, 3), np.float32, sharding=sharding),
        "bias": np.zeros(3, np.float32),
    }
    like = {
        "step": 0,
        "flag": False,
        "lr": 0.0,
        "model": {"layers": [layer, layer], "scale": 0.0},
        "opt_state": (np.zeros(5, np.int32), {"mu": np.zeros((2, 2), np.float16)}),
    }
    found = ocp.load(STEP, like)
    assert (found["step"], found["flag"], found["lr"]) == (7, True, 0.25)
    assert found["model"]["layers"][1]["weight"].sharding == sharding
    assert type(found["opt_state"]) is tuple
    with pytest.raises(TreeMismatchError, match="zzz"):
        ocp.load(STEP, {"zzz": np.zeros(2)}, unexpected="ignore")
    partial = ocp.load(STEP, {"zzz": np.ones(2)}, unexpected="ignore", missing="target")
    assert partial["zzz"].tolist() == [1, 1]
    with pytest.raises(TreeMismatchError, match="opt_state"):
        ocp.load(STEP, {"opt_state": [np.zeros(6, np.int32)]}, unexpected="ignore")
    ocp.save(tmp_path / "copy", ocp.load(STEP, lazy=True))
    assert not ocp.diff(STEP, tmp_path / "copy", values=True)


def test_a_run_is_refused_with_the_latest_step(tmp_path: Path) -> None:
    copy_step(tmp_path)
    mark(tmp_path / "step-9", 9, "2030-01-01T00:00:00")
    with pytest.raises(CheckpointNotFoundError, match=r"step-7, step-9.*step-9 is the latest"):
        ocp.load(tmp_path)


def test_a_save_that_did_not_finish_is_not_read_in_part(tmp_path: Path) -> None:
    step = copy_step(tmp_path)
    (step / "metadata.json").unlink()
    with pytest.raises(IncompleteCheckpointError, match=r"step-7.*metadata\.json"):
        ocp.load(step)


@pytest.mark.parametrize("name", ["model/layers/0/weight/0.0", "step/0"])
def test_a_missing_chunk_is_refused(tmp_path: Path, name: str) -> None:
    step = copy_step(tmp_path)
    (step / name).unlink()
    with pytest.raises(CorruptionError, match="missing"):
        ocp.load(step)


def test_a_damaged_document_is_refused_with_the_place(tmp_path: Path) -> None:
    step = copy_step(tmp_path)
    document = step / "model" / "scale" / ".zarray"
    document.write_text(document.read_text()[:40])
    with pytest.raises(FormatError, match=r"model\.scale"):
        ocp.load(step)


def test_a_size_beyond_all_memory_is_refused(tmp_path: Path) -> None:
    step = copy_step(tmp_path)
    document = step / "model" / "scale" / ".zarray"
    fields = json.loads(document.read_text()) | {"shape": [2**62] * 2, "chunks": [1, 1]}
    document.write_text(json.dumps(fields))
    with pytest.raises(FormatError, match=r"model\.scale.*too many elements"):
        ocp.load(step)


def test_leaves_below_a_leaf_and_links_are_refused(tmp_path: Path) -> None:
    step = copy_step(tmp_path)
    write_array(step / "lr" / "more", np.zeros(2))
    with pytest.raises(FormatError, match="lr is a leaf and has leaves below it"):
        ocp.load(step)
    shutil.rmtree(step / "lr" / "more")
    write_array(tmp_path / "elsewhere" / "secret", np.zeros(2))
    (step / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="linked is a link"):
        ocp.load(step)


def test_keys_with_dots_that_collide_are_refused(tmp_path: Path) -> None:
    step: Any = mark(tmp_path / "step-1", 1, "2030-01-01T00:00:00")
    write_array(step / "a.b", np.zeros(2))
    assert list(ocp.load(step)) == ["a.b"]
    write_array(step / "a" / "b", np.ones(2))
    with pytest.raises(FormatError, match="are ambiguous"):
        ocp.load(step)


def test_the_metadata_of_another_step_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = copy_step(tmp_path)
    report = ocp.verify(step)
    assert report.is_intact
    assert any("(metadata.json): parsed only" in one.what for one in report.unchecked)
    assert not caplog.records
    mark(step, 8, "2026-01-02T00:00:00")
    (damage,) = ocp.verify(step).damage
    assert "metadata.json records step 8" in damage.what
    caplog.clear()
    ocp.load(step)
    assert "records step 8" in caplog.text


def test_a_directory_whose_name_is_no_step_may_hold_any(tmp_path: Path) -> None:
    copy_step(tmp_path).rename(tmp_path / "best")
    assert ocp.verify(tmp_path / "best").is_intact
