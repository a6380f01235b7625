"""Values that msgpack has and trees of arrays seldom: read and written as Flax does."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import flax.serialization as flax
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import orbit_ckpt as ocp
from orbit_ckpt._src.formats.flax_msgpack.write import write
from orbit_ckpt._src.formats.writing import WriteRequest
from orbit_ckpt.errors import FormatError
from tests.support import assert_same_tree, scratch

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.booleans()
VALUES = st.one_of(
    NUMBERS,
    st.text(max_size=300),
    st.binary(max_size=300),
    st.complex_numbers(allow_nan=False),
    arrays(st.sampled_from(["int8", "float32", "bool", "uint64"]), st.sampled_from([(), (3,)])),
    st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True)]),
)
FOREIGN = st.one_of(
    st.none(),
    st.builds(msgpack.ExtType, st.integers(5, 127), st.binary(max_size=20)),
    st.builds(msgpack.Timestamp, st.integers(0, 2**40), st.integers(0, 999_999_999)),
)
KEYS = (st.text(max_size=5), st.integers(-(2**63), 2**64 - 1), st.binary(max_size=5))


def documents(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        dicts = [st.dictionaries(keys, inner, max_size=4) for keys in KEYS]
        return st.one_of(st.lists(inner, max_size=4), *dicts)

    return st.recursive(leaves, containers, max_leaves=8)


def same(found: Any, expected: Any) -> None:
    """Compare trees in which `ExtType` is a value, though it is a tuple too."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected) or set(found) == set(expected)
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, np.ndarray | np.generic):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    else:
        assert found == expected


def pack(tree: object) -> bytes:
    return flax.msgpack_serialize(tree, in_place=True)


@given(documents(VALUES | FOREIGN))
def test_what_flax_writes_is_read_as_flax_reads_it(tree: object) -> None:
    data = pack({"tree": tree})
    with scratch() as path:
        file = path.with_suffix(".msgpack")
        file.write_bytes(data)
        same(ocp.load(file), flax.msgpack_restore(data))


@given(documents(VALUES))
def test_what_is_written_is_read_by_flax_and_here_alike(tree: object) -> None:
    with scratch() as path:
        file = path.with_suffix(".msgpack")
        try:
            write(WriteRequest(file, {"tree": tree}))
        except ocp.errors.NameCollisionError:  # keys are written as str
            return
        same(ocp.load(file), flax.msgpack_restore(file.read_bytes()))


LONG: dict[str, Any] = {
    "numbers": {"a": list(range(30_000)), "w": np.arange(3.0)},
    "texts": {"a": [f"token {i}" for i in range(30_000)]},
    "vocabulary": {"a": {f"token {i}": i for i in range(30_000)}, "n": np.float32(2)},
    "int keys": {i: -i / 7 for i in range(30_000)},
    "mixed": {"a": [None, 2**63, "x" * 300, True, np.int8(3), b"b", {"c": []}] * 3_000},
    "arrays": {"a": {f"k{i}": np.full(2, i) for i in range(300)}},
}


@pytest.mark.parametrize("name", LONG)
def test_long_lists_and_dicts_are_read_as_flax_reads_them(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.msgpack"
    file.write_bytes(pack(LONG[name]))
    same(ocp.load(file), flax.msgpack_restore(file.read_bytes()))


def test_many_numbers_are_not_handled_leaf_by_leaf(tmp_path: Path) -> None:
    numbers = list(range(50_000))
    file = tmp_path / "x.msgpack"
    file.write_bytes(pack({"a": numbers}))
    tracemalloc.start()
    try:
        assert ocp.load(file)["a"] == numbers
        assert tracemalloc.get_traced_memory()[1] < 8 << 20  # a leaf takes a kilobyte
    finally:
        tracemalloc.stop()


def test_dicts_whose_keys_do_not_sort_are_loaded_whole_only(tmp_path: Path) -> None:
    file = tmp_path / "x.msgpack"
    file.write_bytes(pack({1: "a", "b": np.arange(3)}))
    assert ocp.load(file)[1] == "a"
    with pytest.raises(FormatError, match=r"cannot be flattened.*`load` without options"):
        ocp.load(file, lazy=True)


def test_other_keys_and_values_may_be_asked_for_like_any(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint_5"
    tree = {1: {"w": np.arange(3)}, 2: msgpack.Timestamp(3, 4), 3: {b"k": msgpack.ExtType(9, b"x")}}
    file.write_bytes(pack(tree))
    assert ocp.detect_format(file) == "flax_msgpack"
    assert list(ocp.load(file, only="1/w")) == [1]
    found = ocp.load(file, lazy=True)
    assert found[1]["w"].shape == (3,)
    assert (found[2], found[3]) == (tree[2], tree[3])
    assert ocp.verify(file).is_intact


@pytest.mark.slow
def test_a_text_of_any_length_that_is_written_is_read(tmp_path: Path) -> None:
    tree = {"a": "x" * (65 << 20), "b": 1}
    ocp.save(tmp_path / "source", tree)
    ocp.convert(tmp_path / "source", tmp_path / "x.msgpack", to="flax")
    assert_same_tree(ocp.load(tmp_path / "x.msgpack"), tree)
