"""The index of an OCDBT database is what TensorStore itself finds there."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.storage import ocdbt_encode, value_write
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.kvstore import OcdbtStore, open_store
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.value_read import read_value
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt.errors import CorruptionError

ODD_KEYS = ["", "/", "a", "a.b", "a/.zarray", "a/b/c/0.0", "ä ö", "日本/🙂", "\n\0~%:", "."]
LONG_KEY = "x" * 3000


def open_database(
    directory: Path, *, context: ts.Context | None = None, **config: object
) -> ts.KvStore:
    spec = {"driver": "ocdbt", "base": f"file://{directory}/", "config": config}
    return ts.KvStore.open(spec, context=context).result()


def write_all(store: ts.KvStore, values: Mapping[str, bytes]) -> None:
    with ts.Transaction(atomic=True) as transaction:
        for key, value in values.items():
            store.with_transaction(transaction).write(key, value)


def write_database(
    directory: Path, values: Mapping[str, bytes], *, data_file_bytes: int | None = None
) -> None:
    writer = DatabaseWriter(directory, data_file_bytes=data_file_bytes)
    for key, value in values.items():
        writer.put(key, value)
    writer.close()


def assert_index_is_complete(directory: Path, store: ts.KvStore) -> None:
    """Assert that the index has the keys and values that TensorStore lists and reads."""
    index = read_index(directory)
    listed = store.list().result()
    assert {key.encode("utf-8", "surrogateescape") for key in index} == set(listed)
    for key, value in index.items():
        raw = key.encode("utf-8", "surrogateescape")
        assert read_value(value) == store.read(raw).result().value, raw


@pytest.mark.parametrize("compression", [None, {"id": "zstd"}], ids=["plain", "zstd"])
@pytest.mark.parametrize("manifest_kind", ["single", "numbered"])
def test_index_of_a_tree_of_many_levels(
    manifest_kind: str, compression: object, tmp_path: Path
) -> None:
    store = open_database(
        tmp_path,
        max_decoded_node_bytes=300,
        max_inline_value_bytes=20,
        manifest_kind=manifest_kind,
        compression=compression,
    )
    rng = random.Random(1)  # noqa: S311 - not cryptography
    names = [f"layer_{rng.randrange(50)}/w{i}" for i in range(300)] + [*ODD_KEYS, LONG_KEY]
    write_all(store, {name: rng.randbytes(rng.randrange(40)) for name in names})
    assert_index_is_complete(tmp_path, store)
    sizes = {len(v) for v in read_index(tmp_path).values() if isinstance(v, bytes)}
    assert max(sizes) <= 20
    assert any(isinstance(v, Extent) for v in read_index(tmp_path).values())


stored_keys = st.text(
    st.characters(exclude_categories=("Cs",)) | st.sampled_from("a./"), max_size=20
)
stored_values = st.binary(max_size=40) | st.integers(0, 3000).map(lambda n: bytes([n % 256]) * n)


@given(
    values=st.dictionaries(stored_keys, stored_values, max_size=60),
    node_bytes=st.sampled_from([1, 60, 400, 10**8]),
    data_file_bytes=st.sampled_from([None, 2000]),
)
def test_tensorstore_finds_what_is_written_in_trees_of_any_height(
    values: dict[str, bytes], node_bytes: int, data_file_bytes: int | None
) -> None:
    split = functools.partial(value_write.split_entries, max_bytes=node_bytes)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_write, "split_entries", split)
        patch.setattr(ocdbt_encode, "_CHILDREN", 3)
        write_database(Path(folder), values, data_file_bytes=data_file_bytes)
        store = open_database(Path(folder))
        assert len(read_index(Path(folder))) == len(values)
        assert_index_is_complete(Path(folder), store)
        for key, value in values.items():
            assert store.read(key).result().value == value


def test_index_is_of_the_newest_of_many_versions(tmp_path: Path) -> None:
    store = open_database(tmp_path, version_tree_arity_log2=1, max_inline_value_bytes=4)
    for version in range(40):
        store.write("same", b"%d" % version).result()
        store.write(f"key {version}", b"x" * version).result()
        if version % 3 == 0:
            store.write(f"key {version // 2}", None).result()
    assert_index_is_complete(tmp_path, store)
    assert read_index(tmp_path)["same"] == b"39"


@pytest.mark.parametrize("at_once", [1, 2, 3, 1000])
@given(
    keys=st.sets(
        st.text(st.sampled_from("ab\0/é"), max_size=6) | st.sampled_from(ODD_KEYS), min_size=1
    )
)
def test_keys_are_read_as_written(at_once: int, keys: set[str]) -> None:
    values = {key: key.encode() for key in [*keys, LONG_KEY, f"{LONG_KEY}y"]}
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ocdbt_encode, "_COMPARED_KEYS", at_once)
        write_database(Path(directory), values)
        index = read_index(Path(directory))
        assert list(index) == sorted(values)
        assert {key: read_value(value) for key, value in index.items()} == values


def test_index_of_keys_that_are_not_text(tmp_path: Path) -> None:
    store = open_database(tmp_path, max_decoded_node_bytes=100)
    write_all(store, {b"\xff\xfe%d" % i: b"v" for i in range(30)})  # pyright: ignore[reportArgumentType] - bytes are keys
    assert_index_is_complete(tmp_path, store)


@pytest.mark.parametrize("emptied", [False, True])
def test_index_of_an_empty_database(emptied: bool, tmp_path: Path) -> None:
    store = open_database(tmp_path)
    if emptied:
        store.write("a", b"1").result()
    store.delete_range(ts.KvStore.KeyRange()).result()
    store.write("a", None).result()
    assert read_index(tmp_path) == {}


def test_values_merged_from_databases_below_are_found(tmp_path: Path) -> None:
    # what Orbax's processes leave: the root refers to data files of the children
    context = ts.Context()
    parent = open_database(tmp_path, context=context)
    for process in range(2):
        child = open_database(tmp_path / f"ocdbt.process_{process}", context=context)
        write_all(child, {f"p{process}/{i}": bytes([process]) * 3000 for i in range(3)})
        with ts.Transaction(atomic=True) as transaction:
            child.experimental_copy_range_to(parent.with_transaction(transaction)).result()
    assert_index_is_complete(tmp_path, parent)
    values = read_index(tmp_path).values()
    files = {Path(v.file).parents[1].name for v in values if isinstance(v, Extent)}
    assert files == {"ocdbt.process_0", "ocdbt.process_1"}


def test_directories_with_odd_names_can_hold_a_database(tmp_path: Path) -> None:
    directory = tmp_path / "a b%20ä:#?"
    directory.mkdir()
    write_database(directory, {"k": b"v" * 5000, "l": b""})
    index = read_index(directory)
    assert read_value(index["k"]) == b"v" * 5000
    assert index["l"] == b""


def test_data_files_have_the_size_asked_for(tmp_path: Path) -> None:
    write_database(tmp_path, {str(i): b"v" * 4000 for i in range(10)}, data_file_bytes=10_000)
    sizes = [file.stat().st_size for file in (tmp_path / "d").iterdir()]
    assert len(sizes) == 5
    assert max(sizes) < 10_000
    with pytest.raises(ValueError, match="must be >= 0, where 0 means no limit; got -1"):
        DatabaseWriter(tmp_path, data_file_bytes=-1)


@pytest.mark.parametrize("file", ["manifest.ocdbt", "d"])
def test_a_damaged_index_names_the_database(file: str, tmp_path: Path) -> None:
    store = open_database(tmp_path)
    write_all(store, {str(i): b"v" for i in range(10)})
    (damaged,) = (tmp_path / "d").iterdir() if file == "d" else [tmp_path / file]
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1])
    with pytest.raises(CorruptionError, match=f"{tmp_path}: the OCDBT database cannot be read"):
        read_index(tmp_path)
    damaged.unlink()
    with pytest.raises(CorruptionError, match="missing or damaged"):
        OcdbtStore(CheckedDirectory(tmp_path))


def test_both_kinds_of_store_find_keys_and_list_those_of_a_leaf(tmp_path: Path) -> None:
    files, database = tmp_path / "files", tmp_path / "database"
    (files / "a.b" / "c").mkdir(parents=True)
    (files / "a.b" / "zarr.json").write_bytes(b"{}")
    (files / "a.b" / "c" / "0").write_bytes(b"x" * 2000)
    write_all(open_database(database), {"a.b/zarr.json": b"{}", "a.b/c/0": b"x" * 2000, "a/c": b""})
    for directory in (files, database):
        store = open_store(CheckedDirectory(directory))
        value = store.find("a.b/c/0")
        assert isinstance(value, Extent)
        assert read_value(value) == b"x" * 2000
        assert store.find("a.b/c/1") is None
        assert store.find("a.b/c/0/1") is None
        assert sorted(store.keys_below("a.b")) == ["a.b/c/0", "a.b/zarr.json"]
        assert ts.KvStore.open(store.spec("a.b")).result().read("c/0").result().value == b"x" * 2000
