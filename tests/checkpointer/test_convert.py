"""Checkpoints copied from one format into another."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import flax.serialization as flax
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.flax
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.formats.flax_msgpack import write as flax_write
from orbit_ckpt._src.formats.safetensors.header import DTYPES, PACKED_BITS
from orbit_ckpt._src.formats.writing import new_directory, new_file
from orbit_ckpt.errors import (
    CheckpointExistsError,
    CorruptionError,
    NameCollisionError,
    UnsupportedLeafError,
)
from orbit_ckpt.transform import Rename
from tests.support import put, scratch


def tree() -> dict[str, Any]:
    return {
        "params": {
            "kernel": put(np.arange(64 * 48, dtype=np.float32).reshape(64, 48), "x", "y", x=4, y=2),
            "bias": jnp.arange(5, dtype=jnp.bfloat16),
        },
        "layers": [np.arange(6).reshape(2, 3), np.float32(2.5)],
        "nothing": (None, {}, np.zeros((0, 3), np.int8)),
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    ocp.save(tmp_path / "a", tree(), custom_metadata={"note": "hi", "more": [1]})
    return tmp_path / "a"


def test_safetensors_of_a_checkpoint_are_read_by_the_library(saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "m.safetensors"
    ocp.convert(saved, file, to="safetensors", custom_metadata={"format": "flax"})
    found = safetensors.flax.load_file(file)
    expected = {
        "layers.0": tree()["layers"][0],
        "layers.1": tree()["layers"][1],
        "nothing.2": tree()["nothing"][2],
        "params.bias": tree()["params"]["bias"],
        "params.kernel": tree()["params"]["kernel"],
    }
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name].shape == value.shape
        assert np.array_equal(found[name], value)
    with safetensors.safe_open(file, "numpy") as opened:
        assert opened.metadata() == {"format": "flax", "more": "[1]", "note": "hi"}
    assert [path.name for path in file.parent.iterdir()] == ["m.safetensors"]


def test_shards_have_an_index_and_go_back_together(saved: Path, tmp_path: Path) -> None:
    ocp.convert(saved, tmp_path / "m", to="safetensors", max_shard_bytes=100)
    names = sorted(path.name for path in (tmp_path / "m").iterdir())
    assert names[0] == "model-00001-of-00002.safetensors"
    assert names[-1] == "model.safetensors.index.json"
    ocp.convert(tmp_path / "m", tmp_path / "one.safetensors", to="safetensors")
    ocp.convert(saved, tmp_path / "two.safetensors", to="safetensors")
    one, two = ocp.load(tmp_path / "one.safetensors"), ocp.load(tmp_path / "two.safetensors")
    assert jax.tree.all(jax.tree.map(np.array_equal, one, two))


def test_names_with_dots_become_a_nested_tree_by_a_rule(saved: Path, tmp_path: Path) -> None:
    ocp.convert(saved, tmp_path / "m.safetensors", to="safetensors")
    at_dots = Rename(re.compile(r"(.*?)\.(.*)"), r"\1/\2", allow_unused=True)
    found = ocp.load(tmp_path / "m.safetensors", transforms=[at_dots] * 3)
    assert np.array_equal(found["params"]["kernel"], tree()["params"]["kernel"])
    assert np.array_equal(found["layers"]["0"], tree()["layers"][0])


def test_a_flax_file_is_the_one_that_flax_would_have_written(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flax_write, "MAX_PART_BYTES", 1000)
    file = tmp_path / "checkpoint_3"
    ocp.convert(saved, file, to="flax", cast={"params/kernel": jnp.float16})
    found = flax.msgpack_restore(file.read_bytes())
    expected = flax.to_state_dict(tree())
    expected["params"]["kernel"] = expected["params"]["kernel"].astype(np.float16)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert b"__msgpack_chunked_array__" in file.read_bytes()
    ocp.convert(file, tmp_path / "back")
    assert not ocp.diff(file, tmp_path / "back", values=True).changed


@given(st.data())
def test_arrays_of_every_dtype_come_back_bit_by_bit(data: st.DataObject) -> None:
    dtype = DTYPES[data.draw(st.sampled_from([n for n in DTYPES if n not in PACKED_BITS]))]
    shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=3)))
    size = int(np.prod(shape))
    value = np.frombuffer(np.random.default_rng(0).bytes(size * dtype.itemsize), dtype)
    value = (value.view(np.uint8) % 2).view(dtype) if dtype.kind == "b" else value
    value = value.reshape(shape)
    with scratch() as path:
        ocp.save(path, {"w": value})
        for to in ("safetensors", "flax", "orbit"):
            copy = path.with_name(f"copy.{to}")
            ocp.convert(path, copy, to=to)
            path = copy  # noqa: PLW2901 - each from the one before
        found = ocp.load(path)
        (found,) = jax.tree.leaves(found)
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.tobytes() == value.tobytes()


def test_leaves_that_the_format_cannot_hold_are_named_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    bad = {"a": "text", "b": {"key": jax.random.key(0)}, "c": np.zeros(2, np.complex128)}
    ocp.save(tmp_path / "a", bad | {"w": np.ones(2)})
    with pytest.raises(UnsupportedLeafError, match=r"3 leaves: a \(str\), b/key .*, c \(complex"):
        ocp.convert(tmp_path / "a", tmp_path / "m.safetensors", to="safetensors")
    with pytest.raises(UnsupportedLeafError, match=r"1 leaves: b/key \(key<fry>\)"):
        ocp.convert(tmp_path / "a", tmp_path / "m", to="flax")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    ocp.convert(tmp_path / "a", tmp_path / "m.safetensors", to="safetensors", only="w")
    assert list(ocp.load(tmp_path / "m.safetensors")) == ["w"]


@pytest.mark.parametrize("value", [3, "text", 1j, b"x", None], ids=str)
def test_a_single_value_for_flax_needs_a_name_by_which_it_is_known(
    value: object, tmp_path: Path
) -> None:
    ocp.save(tmp_path / "a", value)
    with pytest.raises(ValueError, match=r"ends in \.msgpack"):
        ocp.convert(tmp_path / "a", tmp_path / "m", to="flax")
    assert not (tmp_path / "m").exists()
    ocp.convert(tmp_path / "a", tmp_path / "m.msgpack", to="flax")
    assert ocp.load(tmp_path / "m.msgpack") == value
    assert (tmp_path / "m.msgpack").read_bytes() == flax.to_bytes(value)


@pytest.mark.parametrize("to", ["orbit", "flax", "safetensors", "t5x"])
def test_nothing_is_written_into_the_source(to: str, saved: Path, tmp_path: Path) -> None:
    before = sorted(saved.iterdir())
    (tmp_path / "link").symlink_to(saved)
    for source, place in ((saved, saved), (tmp_path / "link", saved), (saved, tmp_path / "link")):
        with pytest.raises(ValueError, match="inside of"):
            ocp.convert(source, place / "deep" / "checkpoint_1", to=to)
    assert sorted(saved.iterdir()) == before


def test_a_checkpoint_is_converted_in_its_place(saved: Path) -> None:
    ocp.convert(saved, saved, cast={"params/kernel": jnp.float16}, overwrite=True)
    assert ocp.load(saved)["params"]["kernel"].dtype == jnp.float16
    assert ocp.verify(saved)


def test_custom_metadata_that_are_no_object_are_carried_or_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = ocp.args.PyTreeSave({"w": np.ones(3)}, custom_metadata=["a", 1])
    ocp.Checkpointer(ocp.PyTreeHandler()).save(tmp_path / "a", args=args)
    ocp.convert(tmp_path / "a", tmp_path / "b")
    assert ocp.metadata(tmp_path / "b").custom_metadata == ["a", 1]
    ocp.convert(tmp_path / "a", tmp_path / "c", custom_metadata={"k": 2})
    assert ocp.metadata(tmp_path / "c").custom_metadata == {"k": 2}
    assert "left out" not in caplog.text
    ocp.convert(tmp_path / "a", tmp_path / "w.safetensors", to="safetensors")
    assert "a: its custom metadata are left out, they are no JSON object: ['a', 1]" in caplog.text


def test_names_that_would_be_the_same_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.msgpack"
    file.write_bytes(flax.msgpack_serialize({"a": {"b": np.ones(2)}, "a.b": np.ones(3)}))
    with pytest.raises(NameCollisionError, match=r"2 leaves \(a/b, a\.b\) would be called a\.b\. "):
        ocp.convert(file, tmp_path / "m.safetensors", to="safetensors")


def test_what_is_there_is_replaced_only_if_asked_for(saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(b"precious")
    with pytest.raises(CheckpointExistsError, match="Set overwrite=True"):
        ocp.convert(saved, file, to="safetensors")
    assert file.read_bytes() == b"precious"
    ocp.convert(saved, file, to="safetensors", overwrite=True)
    assert "params.kernel" in ocp.load(file)
    (tmp_path / "d").mkdir()
    with pytest.raises(CheckpointExistsError, match="Choose another path"):
        ocp.convert(saved, tmp_path / "d", to="safetensors", overwrite=True)


@pytest.mark.parametrize("opened", [new_file, new_directory])
def test_of_several_writers_at_once_one_succeeds(
    opened: Callable[..., contextlib.AbstractContextManager[Any]], tmp_path: Path
) -> None:
    options = {"overwrite": False} if opened is new_file else {}

    def write(path: Path, begin: threading.Barrier) -> bool:
        try:
            with opened(path, **options) as new:
                if isinstance(new, Path):
                    (new / "file").touch()
                begin.wait()
        except CheckpointExistsError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        for i in range(40):
            begin = threading.Barrier(4)
            done = [pool.submit(write, tmp_path / str(i), begin) for _ in range(4)]
            assert sum(one.result() for one in done) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, range(40)))


@pytest.mark.parametrize("to", ["safetensors", "flax", "orbit"])
def test_damage_found_on_the_way_leaves_nothing_behind(to: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "m.safetensors"
    safetensors.numpy.save_file({"w": np.ones(1 << 20), "v": np.ones(3)}, source)
    ocp.save(tmp_path / "src", ocp.load(source))
    (data,) = [f for f in (tmp_path / "src").glob("**/d/*") if f.stat().st_size > 1000]
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    (tmp_path / "out").mkdir()
    with pytest.raises(CorruptionError):
        ocp.convert(tmp_path / "src", tmp_path / "out" / "x.safetensors", to=to)
    assert list((tmp_path / "out").iterdir()) == []


def test_unknown_formats_and_options_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="to is 'pickle'; give one of 'orbit', 'flax'"):
        ocp.convert(saved, tmp_path / "m", to="pickle")
    with pytest.raises(ValueError, match="no shards; give no size"):
        ocp.convert(saved, tmp_path / "m", to="flax", max_shard_bytes=10)
    with pytest.raises(ValueError, match="give a directory"):
        ocp.convert(saved, tmp_path / "m.safetensors", to="safetensors", max_shard_bytes=10)


PEAK = """
import re, sys
import jax, tensorstore  # not counted
import orbit_ckpt as ocp
def peak():  # not `ru_maxrss`, which begins with that of the process that has started this one
    return int(re.search(r"VmHWM:\\s*([0-9]+) kB", open("/proc/self/status").read())[1])
before = peak()
ocp.convert(sys.argv[1], sys.argv[2], to=sys.argv[3], max_bytes=16 << 20)
print((peak() - before) // 1024)
"""


@pytest.mark.slow
def test_a_checkpoint_larger_than_the_budget_goes_through_in_parts(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**16, (200, 1 << 18), np.uint16)
    ocp.save(tmp_path / "a", {"w": values.view(ml_dtypes.bfloat16)})
    path = tmp_path / "a"
    for to in ("safetensors", "orbit", "flax", "orbit"):
        copy = tmp_path / f"{path.name}-{to}"
        result = subprocess.run(
            [sys.executable, "-c", PEAK, path, copy, to],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        assert int(result.stdout) < 60  # of 100 MB; importing the writer takes some
        path = copy
    assert ocp.load(path)["w"].tobytes() == values.tobytes()
