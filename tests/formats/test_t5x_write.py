"""Checkpoints in T5X's format, read back by ourselves and by TensorStore and Flax alone."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.serialization as flax
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.formats.t5x.chunks import ChunkFiles, document_of
from orbit_ckpt._src.formats.t5x.write import CHUNK_BYTES, choose_chunks, write
from orbit_ckpt._src.formats.writing import WriteRequest
from orbit_ckpt.errors import (
    CheckpointExistsError,
    CorruptionError,
    NameCollisionError,
    TransformError,
    UnsupportedLeafError,
)
from tests.formats.t5x_samples import EXPECTED, SAMPLES
from tests.support import assert_same_tree, put, scratch


class Pair(NamedTuple):
    first: object
    second: object


TREE = {
    "target": {
        "kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
        "bias": np.arange(3, dtype=ml_dtypes.bfloat16),
        "mask": np.array([True, False, True]),
        "f8": np.arange(6, dtype=ml_dtypes.float8_e4m3fn).reshape(1, 6),
        "complex": np.arange(3) * 1j,
    },
    "state": {
        "step": np.int32(7),
        "zero": np.float64(0.5) * np.ones(()),
        "nothing": np.zeros((0, 3), np.int8),
        "ids": np.arange(4, dtype=np.uint16),
        "counts": np.arange(5, dtype=np.int64) - 2,
        "none": None,
        "empty": {},
    },
    "text": "hello",
    "py": {"int": 3, "float": 0.25, "bool": True, "complex": 1 + 2j, "bytes": b"ab"},
}


def written(directory: Path, tree: object, **options: Any) -> Path:
    """Return a checkpoint of T5X converted from one of ours."""
    ocp.save(directory / "ours", tree)
    path = directory / "checkpoint_7"
    ocp.convert(directory / "ours", path, to="t5x", **options)
    return path


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, Mapping):
        assert sorted(found) == sorted(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert np.asarray(found).tobytes() == expected.tobytes()
    else:
        assert (type(found), found) == (type(expected), expected)


def independent(directory: Path) -> Any:
    """Read a checkpoint with Flax and TensorStore as T5X does it."""

    def read(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if not node.keys() >= {"driver", "kvstore", "metadata"}:
            return {key: read(value) for key, value in node.items()}
        spec = {**node, "metadata": {"shape": node["metadata"]["shape"]}}
        spec["kvstore"] = {"driver": "file", "path": f"{directory}/{node['kvstore']['path']}"}
        return ts.open(ts.Spec(spec), open=True).result().read().result()

    root = flax.msgpack_restore((directory / "checkpoint").read_bytes())
    assert list(root) == ["version", "optimizer"]
    assert root["version"] == 3
    return read(root["optimizer"])


def test_every_leaf_comes_back_bit_for_bit_here_and_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path, TREE)
    assert_same(ocp.load(path), TREE)
    assert_same(independent(path), TREE)
    assert sorted(p.name for p in path.iterdir()) == [
        *("checkpoint", "state.counts", "target.bias", "target.complex", "target.f8"),
        *("target.kernel", "target.mask"),
    ]
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


@pytest.mark.parametrize("name", ["v3_keep_pinned/checkpoint_5", "v3_none_empty_mutables"])
def test_files_are_those_of_t5x_byte_for_byte(tmp_path: Path, name: str) -> None:
    sample = SAMPLES / name
    sample = sample if (sample / "checkpoint").exists() else sample / "checkpoint_42"
    path = tmp_path / "copy"
    ocp.convert(sample, path, to="t5x", only=["target/**", "state/**"])
    documents = [p.relative_to(sample) for p in sample.glob("*/.zarray")]
    assert documents
    for document in documents:
        assert (path / document).read_bytes() == (sample / document).read_bytes()
        for chunk in (sample / document).parent.glob("[0-9]*"):
            ours = path / chunk.relative_to(sample)
            assert zlib.decompress(ours.read_bytes(), 31) == zlib.decompress(chunk.read_bytes(), 31)
    if name == "v3_keep_pinned/checkpoint_5":
        assert (path / "checkpoint").read_bytes() == (sample / "checkpoint").read_bytes()


def test_containers_become_dicts_and_shards_one_array(tmp_path: Path) -> None:
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    tree = {
        "target": {"w": put(value, "x", None, x=8)},
        "list": [np.arange(2), (np.arange(3), None)],
        "pair": Pair(np.ones(1), 2),
        "layers": {5: np.zeros(2)},
    }
    found = ocp.load(written(tmp_path, tree))
    assert_same(found["target"]["w"], value)
    assert_same(found["list"], {"0": np.arange(2), "1": {"0": np.arange(3), "1": None}})
    assert_same(found["pair"], {"first": np.ones(1), "second": 2})
    assert_same(found["layers"]["5"], np.zeros(2))


def test_casts_and_rules_apply_on_the_way(tmp_path: Path) -> None:
    path = written(tmp_path, TREE, only="target/kernel", cast={"target/**": jnp.bfloat16})
    kernel = independent(path)["target"]["kernel"]
    assert_same(kernel, TREE["target"]["kernel"].astype(ml_dtypes.bfloat16))


def test_numbers_in_the_other_byte_order_keep_their_values(tmp_path: Path) -> None:
    value = np.arange(6, dtype=np.float32)
    path = written(tmp_path, {"w": value, "n": np.int16(7)}, cast={"w": ">f4", "n": ">i2"})
    assert_same(independent(path), {"w": value, "n": np.int16(7)})


def test_chunks_are_those_that_t5x_chooses() -> None:
    for shape, elements, chunks in EXPECTED["behaviours"]["choose_chunk_shape"]:
        if math.prod(shape) > elements == CHUNK_BYTES // 4:
            assert list(choose_chunks(tuple(shape), 4)) == chunks
    assert choose_chunks((5, 3), 4) == (5, 3)


@pytest.mark.parametrize(
    "shape", [(50_000_017,), (4, 50_000_017), (50_000_017, 4), (2, 3, 2**26), (2**13, 2, 2**14)]
)
def test_lengths_that_t5x_cuts_into_crumbs_are_cut_into_rows(shape: tuple[int, ...]) -> None:
    chunks = choose_chunks(shape, 4)
    count = math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))
    assert math.prod(chunks) * 4 <= CHUNK_BYTES
    assert count <= 10 * math.prod(shape) * 4 / CHUNK_BYTES


@given(st.data())
def test_chunk_files_are_read_by_tensorstore(data: st.DataObject) -> None:
    chunks = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    if data.draw(st.booleans()):  # that divide the shape
        shape = [c * data.draw(st.integers(1, 3)) for c in chunks]
    else:  # rows
        shape = [*data.draw(st.lists(st.integers(1, 3), max_size=2)), data.draw(st.integers(1, 9))]
        chunks = [1] * (len(shape) - 1) + chunks[:1]
    value = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    with scratch() as directory:
        directory.mkdir()
        compressor = {"id": "gzip", "level": 1}
        document = document_of(tuple(shape), value.dtype, tuple(chunks), compressor)
        (directory / ".zarray").write_bytes(document)
        rest = memoryview(value.tobytes())
        with ChunkFiles(directory, tuple(shape), tuple(chunks), 2) as files:
            while rest.nbytes:
                size = data.draw(st.integers(1, rest.nbytes))
                files.write(rest[:size])
                rest = rest[size:]
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{directory}/"}}
        assert_same(ts.open(spec, open=True).result().read().result(), value)
        count = math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))
        assert len(list(directory.glob("[0-9]*"))) == count


@pytest.mark.parametrize(
    "leaf", [np.array(["2020-01-01"], "M8[D]"), np.zeros(2, ml_dtypes.uint4), 2**70]
)
def test_leaves_that_the_format_lacks_are_refused_before_anything_is_written(
    tmp_path: Path, leaf: object
) -> None:
    with pytest.raises(UnsupportedLeafError, match=r"cannot hold 1 leaves: a/bad"):
        write(WriteRequest(tmp_path / "x", {"a": {"bad": leaf}, "w": np.ones(3)}))
    assert list(tmp_path.iterdir()) == []


def test_large_arrays_of_uint16_are_refused_because_t5x_refuses_them(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLeafError, match="too large for the msgpack file"):
        written(tmp_path, {"w": np.zeros(1000, np.uint16)}, max_bytes=4000)
    ocp.convert(tmp_path / "ours", tmp_path / "x", to="t5x", cast={"w": np.int32}, max_bytes=4000)
    assert independent(tmp_path / "x")["w"].dtype == np.int32


def test_names_that_are_taken_or_lead_elsewhere_get_other_directories(tmp_path: Path) -> None:
    tree = {
        "checkpoint": np.full(2, 1),
        "PINNED": np.full(2, 2),
        "train_ds-000": np.full(2, 3),
        "..": np.full(2, 4),
        "a": {"b": np.full(2, 5)},
        "a/b": np.full(2, 6),
        "x\\..\\y": np.full(2, 7),
    }
    path = tmp_path / "step" / "checkpoint_1"
    write(WriteRequest(path, tree))
    assert_same(ocp.load(path), tree)
    assert_same(independent(path), tree)
    assert [p.name for p in path.parent.iterdir()] == ["checkpoint_1"]


@jax.tree_util.register_pytree_with_keys_class
class Twins:
    """A container with two children under names that are the same as str."""

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        keys = (jax.tree_util.DictKey(1), jax.tree_util.DictKey("1"))
        return [(key, np.ones(1)) for key in keys], None

    @classmethod
    def tree_unflatten(cls, _aux: None, _children: object) -> Twins:
        return cls()


def test_keys_that_become_the_same_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NameCollisionError, match="would be called"):
        write(WriteRequest(tmp_path / "x", {"w": Twins()}))


def test_what_is_there_is_not_replaced_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, {"w": np.arange(5)})
    with pytest.raises(CheckpointExistsError):
        ocp.convert(tmp_path / "ours", path, to="t5x", overwrite=True)
    ocp.save(tmp_path / "big", {"w": np.arange(1 << 16)})
    data = max((tmp_path / "big").rglob("d/*"), key=lambda p: p.stat().st_size)
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 255
    data.write_bytes(damaged)
    with pytest.raises(CorruptionError):
        ocp.convert(tmp_path / "big", tmp_path / "x", to="t5x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["big", "checkpoint_7", "ours"]


def test_arrays_that_patterns_name_are_in_the_msgpack_file(tmp_path: Path) -> None:
    target = {"w": np.ones(4, np.float32), "b": np.ones(2)}
    tree = {"target": target, "state": {"ids": np.arange(3)}}
    ocp.save(tmp_path / "own", tree)
    out = tmp_path / "checkpoint_1"
    ocp.convert(tmp_path / "own", out, to="t5x", inline=["target/b", "state/**"])
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint", "target.w"]
    assert_same_tree(ocp.load(out), tree)
    with pytest.raises(TransformError, match="inline: 'none' matches no leaf"):
        ocp.convert(tmp_path / "own", tmp_path / "checkpoint_2", to="t5x", inline="none")
    few: Any = {"to": "t5x", "inline": "**", "max_bytes": 64}
    with pytest.raises(UnsupportedLeafError, match="too large for the msgpack file"):
        ocp.convert(tmp_path / "own", tmp_path / "checkpoint_2", **few)
    with pytest.raises(ValueError, match="inline is for to='t5x' only"):
        ocp.convert(tmp_path / "own", tmp_path / "x", to="flax", inline="**")
    assert not (tmp_path / "checkpoint_2").exists()
