"""safetensors files of the real library and of nobody, read as checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.flax import save_file
from safetensors.numpy import save_file as save_numpy

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointError, CheckpointNotFoundError, FormatError
from tests.support import make_mesh, scratch

SAMPLES = Path(__file__).parent / "samples" / "safetensors"

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
    with pytest.raises(
        CheckpointNotFoundError, match=r"_METADATA[^:]*\nOther formats:(.|\n)* saf.*: no "
    ):
        ocp.load(tmp_path)
    (tmp_path / "data").write_bytes(b"\xff\0\1")
    with pytest.raises(CheckpointNotFoundError, match="safetensors: it does not begin with"):
        ocp.load(tmp_path / "data")


def header_of(fields: object, data: bytes = b"") -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(begin: int, end: int, dtype: object = "U8", shape: object = None) -> dict[str, object]:
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


TWICE = b'{"a": %b, "a": %b}' % ((json.dumps(tensor(0, 1)).encode(),) * 2)

BAD = {
    "empty": (b"", "it has 0 bytes"),
    "short": (b"\x08", "fewer than the 8 of its header"),
    "long_header": ((2**63).to_bytes(8, "little") + b"{}", "fewer than the 9223372036854775808"),
    "no_json": (header_of(b"{nonsense"), "JSON is malformed"),
    "no_object": (header_of(b"[]"), "does not begin with '{'"),
    "no_text": (header_of(b'{"\xff": 1}'), "(?i)utf-8"),
    "deep": (header_of(b'{"a": ' + b"[" * 100_000), "recursion"),
    "number": (header_of(b'{"a": NaN}'), "invalid character"),
    "digits": (header_of(b'{"a": ' + b"9" * 10_000 + b"}"), "out of range"),
    "twice": (header_of(TWICE, b"1"), "'a' twice"),
    "metadata": (header_of({"__metadata__": {"a": 1}}), "Expected `str`, got `int`"),
    "no_tensor": (header_of({"a": 1}), "'a': Expected `object`, got `int`"),
    "dtype": (header_of({"a": tensor(0, 1, "I7")}, b"1"), "dtype 'I7' is none of"),
    "dtype_list": (header_of({"a": tensor(0, 1, ["U8"])}, b"1"), "Expected `str`"),
    "shape": (header_of({"a": tensor(0, 1, shape=[-1])}, b"1"), "Expected `int` >= 0"),
    "bool": (header_of({"a": tensor(0, 1, shape=[True])}, b"1"), "Expected `int`, got `bool`"),
    "dimensions": (header_of({"a": tensor(0, 1, shape=[1] * 65)}, b"1"), "65 dimensions"),
    "more": (header_of({"a": tensor(0, 1) | {"x": [[]]}}, b"1"), "unknown field `x`"),
    "size": (header_of({"a": tensor(0, 4, "F32", [2])}, b"1234"), "does not have 4 bytes"),
    "overflow": (header_of({"a": tensor(0, 4, "F32", [2**62, 2**62])}, b"1234"), "is no shape"),
    "huge": (header_of({"a": tensor(0, 0, "F32", [0, 2**40, 2**40])}), "is no shape of an array"),
    "half": (header_of({"a": tensor(0, 1, "F4", [3])}, b"1"), "does not have 1 bytes"),
    "backwards": (header_of({"a": tensor(4, 0, shape=[])}, b"1234"), "does not have -4 bytes"),
    "beyond": (header_of({"a": tensor(0, 5)}, b"1234"), "ends 1 bytes before the end of 'a'"),
    "overlap": (header_of({"a": tensor(0, 3), "b": tensor(2, 4)}, b"1234"), "'b' and 'a' overlap"),
    "hole": (header_of({"a": tensor(0, 1), "b": tensor(2, 4)}, b"1234"), "1 bytes before 'b'"),
    "trailing": (header_of({"a": tensor(0, 3)}, b"1234"), "the last 1 bytes belong to no tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_header_that_contradicts_the_file_is_a_clear_error(name: str, tmp_path: Path) -> None:
    data, message = BAD[name]
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        ocp.load(tmp_path / "x.safetensors")


@given(st.data())
def test_damage_never_raises_what_is_no_error_of_ours(data: st.DataObject) -> None:
    content = bytearray((SAMPLES / "model.safetensors").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    with scratch() as path:
        for damaged in (content, content[:cut]):
            file = path.with_suffix(".safetensors")
            file.write_bytes(damaged)
            with contextlib.suppress(CheckpointError):
                ocp.load(file)


def test_a_stored_file_of_eformer_has_its_values_and_texts() -> None:
    found = ocp.load(SAMPLES / "model.safetensors")
    assert found["a.w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (found["b"].dtype, found["b"].tolist()) == (jnp.bfloat16, [0, 1, 2, 3])
    texts: Any = ocp.metadata(SAMPLES / "model.safetensors").custom_metadata
    assert json.loads(texts["custom_metadata"]) == {"note": "hi"}


def test_elements_smaller_than_a_byte_stay_packed(tmp_path: Path) -> None:
    fields = {
        "f4": tensor(0, 6, "F4", [3, 4]),
        "f6": tensor(6, 9, "F6_E2M3", [4]),
        "odd": tensor(9, 12, "F4", [2, 3]),
    }
    (tmp_path / "x.safetensors").write_bytes(header_of(fields, bytes(range(12))))
    found = ocp.load(tmp_path / "x.safetensors")
    assert {name: (v.dtype.name, v.tolist()) for name, v in found.items()} == {
        "f4": ("uint8", [[0, 1], [2, 3], [4, 5]]),
        "f6": ("uint8", [6, 7, 8]),
        "odd": ("uint8", [9, 10, 11]),
    }


def write_shards(directory: Path, **changes: str) -> Path:
    save_numpy({"a": np.arange(3), "b": np.ones(2)}, directory / "one.safetensors")
    save_numpy({"c": np.zeros((2, 2))}, directory / "two.safetensors")
    places = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"} | changes
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 72}, "weight_map": places}))
    return index


def test_a_directory_of_hugging_face_with_an_index_is_one_tree(tmp_path: Path) -> None:
    index = write_shards(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, index):
        assert {k: v.shape for k, v in ocp.load(path).items()} == {
            "a": (3,),
            "b": (2,),
            "c": (2, 2),
        }
        assert ocp.metadata(path).custom_metadata == {"total_size": 72}
    index.unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"has 2 models .* give one of them"):
        ocp.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../secret.safetensors", "not the name of a file next to the index"),
        ("/etc/passwd", "not the name of a file next to the index"),
        ("a/../../x.safetensors", "not the name of a file next to the index"),
        ("", "not the name of a file next to the index"),
        ("three.safetensors", "three.safetensors is missing"),
        ("two.safetensors", "do not have the same tensors: 'a' is"),
    ],
)
def test_an_index_that_names_what_is_not_there_is_refused(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    save_numpy({"a": np.arange(3)}, tmp_path / "secret.safetensors")
    write_shards(tmp_path / "model", a=name)
    with pytest.raises(FormatError, match=message):
        ocp.load(tmp_path / "model")


def test_an_index_beyond_all_reason_is_not_held_in_memory(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.touch()
    os.truncate(index, 200 << 20)
    with pytest.raises(FormatError, match=f"{index} has more than 100000000 bytes"):
        ocp.load(tmp_path)


def test_a_sharded_target_reads_only_its_own_rows(tmp_path: Path) -> None:
    value = np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024)
    save_numpy({"w": value, "other": value}, tmp_path / "x.safetensors")
    rows = jax.NamedSharding(make_mesh(x=8), jax.P("x", None))
    like = {"w": jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=rows)}
    plan = ocp.plan(tmp_path / "x.safetensors", like, unexpected="ignore")
    assert plan.bytes_read == value.nbytes
    found = ocp.load(tmp_path / "x.safetensors", like, unexpected="ignore")["w"]
    assert found.sharding == rows
    assert np.array_equal(found, value)
    lazy = ocp.load(tmp_path / "x.safetensors", lazy=True)["w"]
    assert np.array_equal(lazy[100:110], value[100:110])
    reader = lazy.leaf.info.load_batch.reader
    assert reader.bytes_read == 10 * 1024 * 4
