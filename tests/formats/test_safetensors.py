"""safetensors files of the real library and of nobody, read as checkpoints."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.flax import save_file
from safetensors.numpy import save_file as save_numpy

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointNotFoundError
from tests.support import make_mesh

TREE = {
    "layer.0.kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "layer.0.bias": np.arange(3, dtype=ml_dtypes.bfloat16),
    "ids": np.array(7, np.int32),
    "none": np.zeros((0, 3), np.int8),
    "mask": np.array([True, False]),
    "f8": np.arange(4, dtype=ml_dtypes.float8_e4m3fn),
    "f8b": np.arange(4, dtype=ml_dtypes.float8_e5m2),
}


@pytest.fixture(params=["file", "directory"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save_file(
        {name: jnp.asarray(value) for name, value in TREE.items()},
        tmp_path / "model.safetensors",
        metadata={"format": "flax"},
    )
    return tmp_path if request.param == "directory" else tmp_path / "model.safetensors"


def assert_same(found: object, expected: object) -> None:
    leaves, structure = jax.tree.flatten(found)
    wanted, wanted_structure = jax.tree.flatten(expected)
    assert structure == wanted_structure
    for leaf, value in zip(leaves, wanted, strict=True):
        assert (leaf.dtype, leaf.shape) == (value.dtype, value.shape)
        assert np.asarray(leaf).tobytes() == np.asarray(value).tobytes()


def test_loads_a_flat_dict_of_numpy_arrays(model: Path) -> None:
    found = ocp.load(model)
    assert all(type(value) is np.ndarray for value in found.values())
    assert_same(found, TREE)


def test_metadata_plan_lazy_arrays_and_diff_work_as_for_own_checkpoints(
    model: Path, tmp_path: Path
) -> None:
    described = ocp.metadata(model)
    assert described.custom_metadata == {"format": "flax"}
    assert jax.tree.leaves(described.tree)[3].dtype == jnp.bfloat16
    lazy = ocp.load(model, lazy=True)
    assert lazy["layer.0.kernel"][1:, 2].tolist() == [6, 10]
    ocp.save(tmp_path / "copy", lazy)
    assert_same(ocp.load(tmp_path / "copy"), TREE)
    assert not ocp.diff(model, tmp_path / "copy", values=True)
    plan = ocp.plan(model, only="layer.0.kernel")
    assert plan.bytes_read == 48


def test_a_sharding_or_a_target_makes_jax_arrays(model: Path) -> None:
    mesh = make_mesh(x=2)
    replicated = jax.NamedSharding(mesh, jax.P())
    found = ocp.load(model, sharding=replicated)
    assert all(value.sharding == replicated for value in found.values())
    by_column = jax.NamedSharding(mesh, jax.P(None, "x"))
    found = ocp.load(model, sharding={"layer.0.kernel": by_column, "**": replicated})
    assert found["layer.0.kernel"].sharding == by_column
    assert_same(found, TREE)
    like = {"layer.0.kernel": jax.ShapeDtypeStruct((3, 4), jnp.bfloat16, sharding=by_column)}
    found = ocp.load(model, like, unexpected="ignore")
    assert found["layer.0.kernel"].dtype == jnp.bfloat16
    assert found["layer.0.kernel"].sharding == by_column


def test_a_file_that_is_changed_after_lazy_arrays_were_opened_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_numpy({"w": np.ones(3)}, file)
    lazy = ocp.load(file, lazy=True)
    save_numpy({"v": np.zeros(3), "w": np.zeros(3)}, file)
    with pytest.raises(CheckpointNotFoundError, match="replaced by another one"):
        lazy["w"].get()


def test_what_is_no_checkpoint_is_refused_with_what_each_format_lacks(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CheckpointNotFoundError, match=r"_METADATA[^:]*\nOther formats:\n  saf"):
        ocp.load(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="safetensors: it does not begin with"):
        ocp.load(tmp_path / "notes.txt")
