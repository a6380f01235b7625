"""The JSON files of a checkpoint: what is in them, and who can read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays.recorded_sharding import SingleDeviceShardingMetadata
from orbit_ckpt._src.metadata import files
from orbit_ckpt._src.metadata.array_records import ArrayRecord
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.layout import MANIFEST
from orbit_ckpt.errors import CorruptionError, FormatError
from tests.support import checkpointer, put, scratch

SLASHES = {
    "a/b": "1",
    "a/c": "2",
    "a//b": "3",
    "/": "4",
    "x": {"y/z": "5"},
    "x.y": "6",
    "ä/🙂": "7",
}

names = st.text(st.sampled_from("ab/.~"), max_size=5)


@given(st.dictionaries(names, st.text(max_size=5), max_size=6))
def test_strings_are_found_again_under_any_names(strings: dict[str, str]) -> None:
    with scratch() as path:
        path.mkdir()
        files.DocumentWriter(path).write_strings(strings)
        found = files.read_strings(CheckedDirectory(path))
        assert {name: files.find_string(found, name) for name in strings} == strings


def test_a_string_that_is_not_there_is_not_made_of_others() -> None:
    strings = {"a": {"b": "1"}, "c": "2"}
    for name in ("a", "b", "a/b/c", "c/d", "", "/", "a//b"):
        assert files.find_string(strings, name) is None
    assert files.find_string(strings, "a/b") == "1"


def test_strings_with_slashes_in_their_names_round_trip(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", SLASHES)
    assert ocp.load(tmp_path / "x") == SLASHES


@pytest.mark.interop
def test_orbax_reads_our_strings_and_we_read_its(tmp_path: Path) -> None:
    import orbax.checkpoint as orbax  # noqa: PLC0415 - optional

    tree = {"a/b": "1", "a/c": "2", "x": {"y/z": "5"}, "plain": "ä\n"}
    with orbax.PyTreeCheckpointer() as theirs:
        ocp.save(tmp_path / "ours", tree)
        assert theirs.restore(tmp_path / "ours") == tree
        theirs.save(tmp_path / "theirs", tree)
        assert ocp.load(tmp_path / "theirs") == tree


def test_no_file_is_written_that_would_say_nothing(tmp_path: Path) -> None:
    checkpointer().save(tmp_path / "x", {"a": np.ones(3)})
    names = {p.name for p in (tmp_path / "x").iterdir()}
    assert not names & {"_strings.json", "_sharding", "array_metadatas", "orbit_tree.json"}


def test_array_records_and_shardings_round_trip(tmp_path: Path) -> None:
    records = [
        ArrayRecord("", (), ()),
        ArrayRecord("a.b", (4, 2), (2, 2)),
        ArrayRecord("keys/ä", (3, 2), (3, 2), "threefry2x32"),
    ]
    shardings = {
        "": SingleDeviceShardingMetadata("cpu:0"),
        "a.b": SingleDeviceShardingMetadata("x"),
    }
    writer = files.DocumentWriter(tmp_path)
    writer.write_arrays(0, records)
    document = files.encode_shardings([*shardings, "none"], [*shardings.values(), None])
    writer.write_shardings(document)
    directory = CheckedDirectory(tmp_path)
    assert files.read_arrays(directory) == {record.name: record for record in records}
    assert files.read_shardings(directory)() == shardings
    assert set(json.loads((tmp_path / "_sharding").read_text())) == {"", "YS5i"}


@pytest.mark.interop
def test_our_documents_say_what_orbax_s_say(tmp_path: Path) -> None:
    import orbax.checkpoint as orbax  # noqa: PLC0415 - optional

    tree = {
        "sharded": put(np.ones((8, 4), np.float32), "x", None, x=4),
        "replicated": put(np.ones(3, np.int32), None, x=4),
        "single": jax.device_put(jnp.ones(5), jax.devices()[0]),
        "keys": jax.random.split(jax.random.key(0), 3),
        "list": [np.ones(2), 1, 2.5, "x"],
        "empty": {"a": {}, "b": [], "c": (), "d": None},
        "i": {3: np.ones(1), 10: True},
    }
    with orbax.PyTreeCheckpointer(use_ocdbt=True) as theirs:
        theirs.save(tmp_path / "theirs", tree)
    checkpointer(rich_types=False, use_zarr3=False).save(tmp_path / "ours", tree)

    def read(who: str, name: str) -> Any:
        return json.loads((tmp_path / who / name).read_text())

    trees = [read(who, "_METADATA") for who in ("ours", "theirs")]
    assert trees[0] == trees[1]
    assert list(trees[0]["tree_metadata"]) == list(trees[1]["tree_metadata"])
    ours, theirs_ = (read(who, "_sharding") for who in ("ours", "theirs"))
    assert ours.keys() == theirs_.keys()
    for key in ours:
        assert json.loads(ours[key]) == json.loads(theirs_[key])
    rows = [read(who, "array_metadatas/process_0")["array_metadatas"] for who in ("ours", "theirs")]
    keys = [row for row in rows[1] if row["array_metadata"]["ext_metadata"]]
    assert rows[0] == keys
    steps = [read(who, "_CHECKPOINT_METADATA") for who in ("ours", "theirs")]
    assert steps[0].keys() == steps[1].keys()
    assert steps[0]["item_handlers"] == steps[1]["item_handlers"]


def test_a_string_that_the_file_lacks_is_named(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": {"b": "text"}, "c": "more"})
    (tmp_path / "x" / MANIFEST).unlink()
    (tmp_path / "x" / "_strings.json").write_text('{"c": "more"}')
    with pytest.raises(
        CorruptionError, match=r"a/b: no string 'a\.b' in .*_strings\.json"
    ) as caught:
        ocp.load(tmp_path / "x")
    assert caught.value.path == "a/b"
    assert caught.value.file == str(tmp_path / "x" / "_strings.json")


def test_a_kind_of_sharding_that_is_not_known_is_left_out(tmp_path: Path) -> None:
    known = '{"sharding_type": "SingleDeviceSharding", "device_str": "cpu:0"}'
    unknown = '{"sharding_type": "PositionalSharding"}'
    (tmp_path / "_sharding").write_text(json.dumps({"YQ==": unknown, "Yg==": known}))
    found = files.read_shardings(CheckedDirectory(tmp_path))()
    assert found == {"b": SingleDeviceShardingMetadata("cpu:0")}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"YQ==": "{}"}, "'YQ==': unknown sharding type None"),
        ({"YQ==": {}}, "expected `str`, got `object`"),
        ({"YQ==": '{"sharding_type": "NamedSharding"}'}, "NamedSharding: field 'shape' is missing"),
        (
            {"not base64": '{"sharding_type": "SingleDeviceSharding", "device_str": ""}'},
            "not base64",
        ),
    ],
)
def test_a_sharding_that_is_not_understood_is_named(
    content: object, message: str, tmp_path: Path
) -> None:
    (tmp_path / "_sharding").write_text(json.dumps(content))
    with pytest.raises(FormatError, match=f"_sharding: .*{message}"):
        files.read_shardings(CheckedDirectory(tmp_path))()
