"""Checkpoints whose chunks suit the meshes that they will be loaded on."""

from __future__ import annotations

import functools
import json
import math
import operator
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as orbax
import pytest
from click.testing import CliRunner
from jax.sharding import NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.app import app
from orbit_ckpt._src.transform.expected_mesh import read_meshes
from orbit_ckpt.errors import FormatError
from orbit_ckpt.transform import ExpectedMesh
from tests.support import counted, make_mesh, put

VALUE = np.random.default_rng(0).integers(0, 1 << 30, (4096, 4096), np.int32)
MESHES: list[dict[str, int]] = [
    {"x": 8, "y": 1},
    {"x": 1, "y": 8},  # transposed
    {"x": 1, "y": 1},  # eight to one
    {"x": 4, "y": 2},
    {"z": 8},  # replicated
]


def chunk_of(path: Path, leaf: str = "w") -> tuple[int, ...]:
    tree: Any = ocp.metadata(path).tree
    return functools.reduce(operator.getitem, leaf.split("/"), tree).storage.chunk_shape


def over_read(path: Path, sharding: NamedSharding) -> float:
    """Return the most that a device reads, in relation to what it needs, as its own process."""
    ratios: list[float] = []
    indices = sharding.devices_indices_map(VALUE.shape).values()
    for index in {str(index): index for index in indices}.values():  # slices have no hash on 3.11
        with counted() as total:
            found = ocp.load(path, lazy=True)["w"][index]
        assert np.array_equal(found, VALUE[index])
        ratios.append(total[0] / found.nbytes)
    return max(ratios)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("expected") / "c"
    tree = {"w": put(VALUE, "x", "y", x=8, y=1), "small": np.ones((64, 64)), "step": 3}
    ocp.save(path, tree, expected_meshes=[make_mesh(x=1, y=8), *MESHES])
    return path


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_devices_read_only_what_they_need(axes: dict[str, int], saved: Path) -> None:
    spec = PartitionSpec(*(axis if axis in axes else None for axis in ("x", "y")))
    assert over_read(saved, NamedSharding(make_mesh(**axes), spec)) <= 1.1


def test_without_expected_meshes_devices_read_more(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"w": put(VALUE, "x", "y", x=8, y=1)})
    transposed = NamedSharding(make_mesh(x=1, y=8), PartitionSpec("x", "y"))
    assert over_read(tmp_path / "c", transposed) > 4


def test_orbax_restores_it(saved: Path) -> None:
    sharding = NamedSharding(make_mesh(x=1, y=8), PartitionSpec("x", "y"))
    with orbax.PyTreeCheckpointer() as checkpointer:
        args = {"w": orbax.ArrayRestoreArgs(sharding=sharding), "small": orbax.RestoreArgs()}
        found = checkpointer.restore(
            saved, orbax.args.PyTreeRestore(restore_args=args | {"step": orbax.RestoreArgs()})
        )
    assert found["w"].sharding == sharding
    assert np.array_equal(found["w"], VALUE)


def test_chunks_are_not_cut_below_a_megabyte(saved: Path, tmp_path: Path) -> None:
    assert chunk_of(saved) == (512, 512)
    assert chunk_of(saved, "small") == (64, 64)
    with_specs = ExpectedMesh({"a": 64, "b": 64}, {"w": ("a", "b")})
    ocp.save(tmp_path / "c", {"w": VALUE}, expected_meshes=[with_specs])
    assert math.prod(chunk_of(tmp_path / "c")) * 4 == 1 << 20


def test_options_of_a_leaf_name_the_parts(tmp_path: Path) -> None:
    args = ocp.args.PyTreeSave({"w": VALUE}, {"w": ocp.SaveArgs(read_shapes=((4096, 512),))})
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "c", args=args)
        assert chunk_of(tmp_path / "c") == (4096, 512)
        wrong = ocp.args.PyTreeSave({"w": VALUE}, {"w": ocp.SaveArgs(read_shapes=((4096,),))})
        with pytest.raises(ValueError, match=r"w: SaveArgs.read_shapes .* 2 dimensions"):
            checkpointer.save(tmp_path / "d", args=wrong)


@pytest.mark.parametrize("wrong", [8, [8], [{"x": "8"}]])
def test_other_things_than_meshes_are_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"axes|expected_meshes"):
        ocp.save(tmp_path / "c", {"w": VALUE[:2]}, expected_meshes=wrong)
    assert not (tmp_path / "c").exists()


def run(*args: object) -> str:
    result = CliRunner().invoke(app, list(map(str, args)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_line_plans_and_rechunks(tmp_path: Path) -> None:
    tree = {"layer": {"w": put(VALUE, "x", None, x=8)}, "name": "text"}
    ocp.save(tmp_path / "a", tree, custom_metadata={"note": 1})
    mesh = tmp_path / "mesh.json"
    mesh.write_text('{"axes": {"model": 8}, "specs": {"layer/.*": [null, "model"]}}')
    planned = json.loads(run("plan", tmp_path / "a", "--for", mesh, "--json"))
    assert planned["meshes"][0]["over_read"] == 8.0
    assert "8.00" in run("plan", tmp_path / "a", "--for", mesh)
    assert "over-read 1.00" in run("rechunk", tmp_path / "a", tmp_path / "b", "--for", mesh)
    found = ocp.load(tmp_path / "b")
    assert np.array_equal(found["layer"]["w"], VALUE)
    assert found["name"] == "text"
    assert ocp.metadata(tmp_path / "b").custom_metadata == {"note": 1}
    assert chunk_of(tmp_path / "b", "layer/w") == (4096, 512)
    assert found["layer"]["w"].sharding == ocp.load(tmp_path / "a")["layer"]["w"].sharding


@pytest.mark.parametrize(
    "text", ["[]{", '{"axes": 3}', '{"axes": {}, "spec": {}}', '{"axes": {"x": 0}}']
)
def test_a_bad_mesh_file_is_explained(text: str) -> None:
    with pytest.raises(FormatError, match=r"mesh.json: .* Expected a mesh such as"):
        read_meshes(text, "mesh.json")


def test_leaves_of_foreign_formats_are_rechunked(tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"w": VALUE})
    ocp.convert(tmp_path / "a", tmp_path / "w.safetensors", to="safetensors")
    serve = ExpectedMesh({"m": 4}, {"w": (None, "m")})
    ocp.rechunk(tmp_path / "w.safetensors", tmp_path / "b", [serve])
    assert np.array_equal(ocp.load(tmp_path / "b")["w"], VALUE)
    assert chunk_of(tmp_path / "b") == (4096, 1024)
