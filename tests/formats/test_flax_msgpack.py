"""msgpack files of Flax: stored samples, files of the real library, and damaged ones."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import flax.serialization as flax
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from flax.training import train_state
from flax.training.checkpoints import latest_checkpoint
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.formats.runs import locate_run
from orbit_ckpt.errors import CheckpointError, FormatError
from tests.support import make_mesh, scratch

SAMPLES = Path(__file__).parent / "samples" / "flax_msgpack"
EXPECTED = json.loads((SAMPLES / "expected.json").read_text())


def check(found: Any, expected: Any) -> None:
    """Compare a value with its description."""
    if "np" in expected:
        kind = np.generic if expected["np"] == "scalar" else np.ndarray
        assert isinstance(found, kind)
        assert (found.dtype.name, list(found.shape)) == (expected["dtype"], expected["shape"])
        assert found.tobytes()[:64].hex() == expected["bytes_hex"]
        if found.dtype.kind != "c":
            assert found.astype(np.float64).tolist() == expected["data"]
    elif "py" in expected:
        assert type(found).__name__ == expected["py"]
        if "items" in expected:
            for one, other in zip(found, expected["items"], strict=True):
                check(one, other)
        elif "hex" in expected:
            assert found.hex() == expected["hex"]
        else:
            value = expected["value"]
            assert found == (complex(*value) if expected["py"] == "complex" else value)
    else:
        assert sorted(found) == sorted(expected)
        for name, value in expected.items():
            check(found[name], value)


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith(".msgpack")])
def test_samples_have_the_values_that_flax_restored(name: str) -> None:
    check(ocp.load(SAMPLES / name), EXPECTED[name]["value"])


def write(file: Path, tree: object) -> Path:
    file.write_bytes(flax.msgpack_serialize(tree))
    return file


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flax, "MAX_CHUNK_SIZE", 1000)


@pytest.mark.usefixtures("small_chunks")
def test_an_array_in_parts_is_read_like_any_other(tmp_path: Path) -> None:
    value = np.arange(70 * 90, dtype=np.float32).reshape(70, 90)
    file = write(tmp_path / "checkpoint_3", {"a": {"b": {"w": value}}, "small": np.arange(3)})
    assert b"__msgpack_chunked_array__" in file.read_bytes()
    found = ocp.load(file)
    assert np.array_equal(found["a"]["b"]["w"], value)
    lazy = ocp.load(file, lazy=True)["a"]["b"]["w"]
    assert np.array_equal(lazy[30:60, 5:80], value[30:60, 5:80])
    assert np.array_equal(lazy[:, 3], value[:, 3])
    sharding = jax.NamedSharding(make_mesh(x=4, y=2), jax.P("y", None))
    placed = ocp.load(file, sharding=sharding, only="a/**")["a"]["b"]["w"]
    assert placed.sharding == sharding
    assert np.array_equal(placed, value)
    ocp.save(tmp_path / "copy", ocp.load(file, lazy=True))
    assert not ocp.diff(file, tmp_path / "copy", values=True)
    assert ocp.metadata(file)["a"]["b"]["w"].shape == (70, 90)


def test_a_train_state_is_restored_into_a_target(tmp_path: Path) -> None:
    import optax  # noqa: PLC0415 - imports slowly

    params = {"dense": {"kernel": jnp.ones((3, 4)), "bias": jnp.zeros(4)}}
    state = train_state.TrainState.create(apply_fn=None, params=params, tx=optax.adam(1e-3))
    state = state.apply_gradients(grads=params)
    (tmp_path / "checkpoint_1").write_bytes(flax.to_bytes(state))
    found = ocp.load(tmp_path, flax.to_state_dict(state))
    restored = flax.from_state_dict(state, found)
    assert jax.tree.all(jax.tree.map(np.array_equal, restored, state))
    assert ocp.load(tmp_path)["step"] == 1


def test_a_directory_with_several_steps_is_loaded_as_the_newest(tmp_path: Path) -> None:
    for step in (9, 10):
        write(tmp_path / f"checkpoint_{step}", {"step": step})
    assert ocp.load(tmp_path) == {"step": 10}
    assert ocp.load(tmp_path / "checkpoint_9") == {"step": 9}


def test_steps_are_ordered_and_told_apart_as_flax_does(tmp_path: Path) -> None:
    names = ["checkpoint_1.5", "checkpoint_10", "checkpoint_1", "checkpoint_2.0"]
    for name in names:
        write(tmp_path / name, {"step": name})
    steps = locate_run(tmp_path).steps
    assert [(one.step, one.path.name) for one in steps] == [
        (1, "checkpoint_1"),
        (1.5, "checkpoint_1.5"),
        (2, "checkpoint_2.0"),
        (10, "checkpoint_10"),
    ]
    assert str(steps[-1].path) == latest_checkpoint(tmp_path)


def test_an_array_that_flax_stored_elsewhere_is_no_string(tmp_path: Path) -> None:
    file = write(tmp_path / "checkpoint_2", {"a": {"w": "//GDAPlaceholder:a/w"}})
    with pytest.raises(FormatError, match=r"a/w: its array was saved by several processes"):
        ocp.load(file)


def test_keys_with_dots_are_leaves_of_their_own(tmp_path: Path) -> None:
    tree = {"a": {"b": np.arange(2)}, "a.b": np.arange(3), "a/b": np.arange(4)}
    found = ocp.load(write(tmp_path / "x.msgpack", tree))
    assert jax.tree.all(jax.tree.map(np.array_equal, found, tree))


def test_nothing_of_a_large_array_is_read_to_know_what_there_is(tmp_path: Path) -> None:
    file = write(tmp_path / "x.msgpack", {"w": np.zeros(1 << 23, np.uint8)})
    ocp.metadata(file)
    tracemalloc.start()
    try:
        ocp.metadata(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def ext(code: int, data: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, data))


def array(shape: object, dtype: object, data: object) -> bytes:
    return msgspec.msgpack.encode([shape, dtype, data])


BAD = {
    "huge_map": b"\xdf\xff\xff\xff\xff\xa1a\x01",
    "huge_array": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "huge_bin": b"\x81\xa1a\xc6\xff\xff\xff\xff1234",
    "huge_str": b"\x81\xa1a\xdb\xff\xff\xff\xff1234",
    "huge_ext": b"\x81\xa1a\xc9\xff\xff\xff\xff\x01123",
    "deep": b"\x81\xa1a" * 100_000 + b"\x01",
    "deep_lists": b"\x81\xa1a" + b"\x91" * 100_000 + b"\x01",
    "deep_tuples": b"\x81\xa1a" + ext(4, b"\x91" * 5000),
    "trailing": b"\x81\xa1a\x01\x00",
    "never_used": b"\x81\xa1a\xc1",
    "twice": b"\x82\xa1a\x01\xa1a\x02",
    "no_utf8": b"\x81\xa1\xff\x01",
    "list_key": b"\x81\x91\x01\x01",
    "time": b"\x81\xa1a" + ext(-1, b"123"),
    "shape": b"\x81\xa1a" + ext(1, array([3], "float32", b"1234")),
    "negative": b"\x81\xa1a" + ext(1, array([-1], "float32", b"1234")),
    "overflow": b"\x81\xa1a" + ext(1, array([2**62, 2**62], "float32", b"1234")),
    "empty_but_huge": b"\x81\xa1a" + ext(1, array([0, 2**40, 2**40], "float32", b"")),
    "object": b"\x81\xa1a" + ext(1, array([1], "object", b"12345678")),
    "text": b"\x81\xa1a" + ext(1, array([1], "U1", b"1234")),
    "no_dtype": b"\x81\xa1a" + ext(1, array([1], "nothing", b"1234")),
    "commas": b"\x81\xa1a" + ext(1, array([1], "f4,,", b"1234")),
    "no_list": b"\x81\xa1a" + ext(1, b"\x01"),
    "scalar": b"\x81\xa1a" + ext(3, array([1], "int8", b"1")),
    "complex": b"\x81\xa1a" + ext(2, msgspec.msgpack.encode([1, 2, 3])),
    "longer": b"\x81\xa1a" + ext(1, array([4], "int8", b"1234") + b"\x00"),
    "parts": msgspec.msgpack.encode(
        {"a": {"__msgpack_chunked_array__": True, "shape": {"0": 3}, "chunks": {"0": 1}}}
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_flax_never_writes_is_a_clear_error_in_little_memory(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.msgpack"
    file.write_bytes(BAD[name])
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"not a sound msgpack file of Flax: byte \d+: "):
            ocp.load(file)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def load_damaged(content: bytes) -> None:
    with scratch() as path:
        file = path.with_suffix(".msgpack")
        file.write_bytes(content)
        with contextlib.suppress(CheckpointError):
            ocp.load(file)


def test_a_file_that_ends_anywhere_is_an_error(tmp_path: Path) -> None:
    data = (SAMPLES / "all_types.msgpack").read_bytes()
    for length in range(len(data)):
        (tmp_path / "x.msgpack").write_bytes(data[:length])
        with pytest.raises(FormatError):
            ocp.metadata(tmp_path / "x.msgpack")


@given(st.data())
def test_damage_never_raises_what_is_no_error_of_ours(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["all_types", "chunked_64B", "orbax_tuple_ext4"]))
    content = bytearray((SAMPLES / f"{name}.msgpack").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    load_damaged(bytes(content))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(content: bytes) -> None:
    load_damaged(bytes(content))
