"""Documents of a checkpoint: decoded exactly, or refused with where they are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.metadata.array_records import decode_arrays
from orbit_ckpt._src.metadata.codec import decode_json
from orbit_ckpt._src.metadata.schema import StepDocument, TreeDetails, TreeDocument
from orbit_ckpt._src.storage.layout import MANIFEST
from orbit_ckpt.errors import CheckpointError, FormatError
from tests.faults.support import Layout, every_kind_of_leaf

DOCUMENTS = [
    "_METADATA",
    "_CHECKPOINT_METADATA",
    "_sharding",
    "_strings.json",
    "array_metadatas/process_0",
    "orbit_tree.json",
]

LEAF: dict[str, Any] = {
    "key_metadata": [{"key": "a", "key_type": 2}, {"key": "0", "key_type": 1}],
    "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False, "write_shape": [2]},
}
TREE = {
    "tree_metadata": {"('a', '0')": LEAF},
    "use_ocdbt": True,
    "use_zarr3": False,
    "store_array_data_equal_to_fill_value": True,
    "custom_metadata": {"mine": 1},
}


@pytest.fixture(scope="module")
def unchecked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of every kind of leaf, without checksums of its documents, as Orbax's are."""
    path = tmp_path_factory.mktemp("unchecked") / "checkpoint"
    Layout(use_ocdbt=False).save(path, every_kind_of_leaf())
    (path / MANIFEST).unlink()
    return path


def decode(document: object) -> TreeDocument:
    return TreeDocument.decode(json.dumps(document).encode(), "x")


def test_a_tree_document_is_read_and_written_back() -> None:
    document = decode(TREE)
    (leaf,) = document.leaves
    assert (leaf.names, leaf.typestr, leaf.is_empty) == (("a", "0"), "jax.Array", False)
    assert leaf.write_shape == (2,)
    assert (document.use_ocdbt, document.use_zarr3) == (True, False)
    assert json.loads(document.encode()) == TREE


def test_what_old_writers_left_out_has_defaults() -> None:
    leaf = {"key_metadata": [], "value_metadata": {"value_type": "scalar"}}
    document = decode({"tree_metadata": {"()": leaf}})
    assert document.use_ocdbt is None
    assert not document.use_zarr3
    assert not document.stores_fill_values
    assert not document.leaves[0].is_empty
    assert StepDocument.decode(b"{}", "x") == StepDocument()


def test_flags_are_read_as_orbax_writes_them_and_written_as_booleans() -> None:
    flags = {"use_ocdbt": 1, "use_zarr3": 0, "store_array_data_equal_to_fill_value": 1}
    value = LEAF["value_metadata"] | {"skip_deserialize": 0}
    leaf = {"('a', '0')": LEAF | {"value_metadata": value}}
    document = decode(TREE | flags | {"tree_metadata": leaf})
    assert document == decode(TREE)
    assert document.encode() == decode(TREE).encode()
    assert decode(TREE | {"use_zarr3": None}) == decode(TREE | {"use_zarr3": False})
    value["skip_deserialize"] = 1
    assert decode(TREE | {"tree_metadata": leaf}).leaves[0].is_empty is True


def test_unknown_fields_are_ignored_and_those_of_a_step_survive() -> None:
    assert decode(TREE | {"new": 1}) == decode(TREE)
    step = {"item_handlers": {"a": "A", "b": None}, "new": [1], "metrics": {"loss": 1.0}}
    document = StepDocument.decode(json.dumps(step).encode(), "x")
    assert document.item_handlers == {"a": "A"}
    written = json.loads(document.encode())
    assert written["new"] == [1]
    assert written["metrics"] == {"loss": 1.0}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "x: expected `object`, got `array`"),
        ({}, "x: object missing required field `tree_metadata`"),
        (TREE | {"use_zarr3": [1]}, r"got `array` - at `\$.use_zarr3`"),
        (TREE | {"use_ocdbt": "yes"}, r"got `str` - at `\$.use_ocdbt`"),
        (TREE | {"value_metadata_tree": {}}, r"got `object` - at `\$.value_metadata_tree`"),
        (TREE | {"tree_metadata": {"k": 3}}, r"got `int` - at `\$.tree_metadata\[...\]`"),
        (
            TREE | {"tree_metadata": {"k": LEAF | {"key_metadata": None}}},
            r"got `null` - at `\$.tree_metadata\[...\].key_metadata`",
        ),
        (
            TREE | {"tree_metadata": {"k": LEAF | {"key_metadata": [{"key": 1, "key_type": 2}]}}},
            r"got `int` - at `\$.tree_metadata\[...\].key_metadata\[0\].key`",
        ),
        (
            TREE | {"tree_metadata": {"k": LEAF | {"key_metadata": [{"key": "a", "key_type": 3}]}}},
            "invalid enum value 3 - at .*key_type",
        ),
        (
            TREE | {"tree_metadata": {"k": LEAF | {"key_metadata": [{"key": "a", "key_type": 1}]}}},
            "'a' is not a position",
        ),
        (
            TREE | {"tree_metadata": {"k": LEAF | {"value_metadata": {}}}},
            "missing required field `value_type`",
        ),
        (
            TREE
            | {
                "tree_metadata": {
                    "k": LEAF | {"value_metadata": {"value_type": "x", "write_shape": [1.5]}}
                }
            },
            r"got `float` - at `\$.tree_metadata\[...\].value_metadata.write_shape\[0\]`",
        ),
    ],
)
def test_a_wrong_tree_document_is_refused_with_the_place(document: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode(document)


@pytest.mark.parametrize(
    ("decode", "document", "message"),
    [
        (TreeDetails.decode, {"format_version": 2}, "format version 2; .*reads up to 1"),
        (TreeDetails.decode, {}, "missing required field `format_version`"),
        (TreeDetails.decode, {"format_version": 1, "keys": {"a": ["odd"]}}, "odd"),
        (TreeDetails.decode, {"format_version": 1, "leaves": {"a": 1}}, "x: "),
        (decode_arrays, {}, "missing required field `array_metadatas`"),
        (
            decode_arrays,
            {"array_metadatas": [{"array_metadata": {"param_name": None}}]},
            r"expected `str`, got `null` - at `\$.array_metadatas\[0\].array_metadata.param_name`",
        ),
        (StepDocument.decode, {"item_handlers": 1}, r"got `int` - at `\$.item_handlers`"),
        (StepDocument.decode, {"item_handlers": {"a": 1}}, r"at `\$.item_handlers\[...\]`"),
        (
            StepDocument.decode,
            {"init_timestamp_nsecs": "now"},
            "got `str` - at .*init_timestamp_nsecs",
        ),
        (StepDocument.decode, {"custom_metadata": [1]}, r"got `array` - at `\$.custom_metadata`"),
    ],
)
def test_other_wrong_documents_are_refused_with_the_place(
    decode: Callable[[object, str], object], document: object, message: str
) -> None:
    with pytest.raises(FormatError, match=f"x.*{message}|{message}"):
        decode(json.dumps(document).encode(), "x")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"nul", b"[" * 100_000], ids=repr)
def test_what_is_not_json_is_refused_with_its_beginning(data: bytes) -> None:
    with pytest.raises(FormatError, match="x: expected JSON, found b'") as caught:
        decode_json(data, object, "x")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("data", [b"", b"not JSON", b"[]", b"null", b'"text"', b"{\xff}"], ids=repr)
def test_a_file_that_holds_something_else_is_named(name: str, data: bytes, unchecked: Path) -> None:
    before = (unchecked / name).read_bytes()
    (unchecked / name).write_bytes(data)
    # a tree does without what is said of the checkpoint as a whole
    read = ocp.PyTreeCheckpointer().metadata if name == "_CHECKPOINT_METADATA" else ocp.load
    try:
        with pytest.raises(FormatError, match=f"{name}: expected"):
            read(unchecked)
    finally:
        (unchecked / name).write_bytes(before)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 5)
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "0", "1", "a", "jax.Array", "None", "Tuple", "bytes", "rbg", "🙂/~."]),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=2), children, max_size=3)
    ),
    max_leaves=4,
)


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """Return a document with one value, somewhere inside, replaced, removed or moved."""
    document = json.loads(json.dumps(document))
    node: Any = {"root": document}
    key: Any = "root"
    while isinstance(node[key], dict | list) and node[key] and draw(st.integers(0, 9)):
        node = node[key]
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = draw(st.sampled_from(keys))
    if draw(st.booleans()) or node is document or key == "root":
        node[key] = draw(json_values)
    elif draw(st.booleans()):
        del node[key]
    elif isinstance(node, dict):
        node[draw(st.sampled_from(["", "a", "0", *node]))] = node.pop(key)
    else:
        node.append(node[key])
    return document


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [*DOCUMENTS, "value_metadata_tree", "one sharding", "jax.keys/zarr.json", "bytes/zarr.json"],
)
@given(data=st.data())
def test_any_change_of_a_document_is_refused_or_gives_a_tree(
    name: str, data: st.DataObject, unchecked: Path
) -> None:
    # two documents hold others as text
    holders = {"value_metadata_tree": "_METADATA", "one sharding": "_sharding"}
    file = unchecked / holders.get(name, name)
    before = file.read_bytes()
    document = json.loads(before)
    if name not in holders:
        document = data.draw(changed(document))
    else:
        field = name if name in document else data.draw(st.sampled_from(sorted(document)))
        document[field] = json.dumps(data.draw(changed(json.loads(document[field]))))
    file.write_text(json.dumps(document))
    try:
        for read in (ocp.load, ocp.PyTreeCheckpointer().metadata):
            try:
                read(unchecked)
            except CheckpointError as error:
                assert str(error)  # noqa: PT017 - other errors fail the test
    finally:
        file.write_bytes(before)
