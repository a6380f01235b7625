"""zarr documents: what we write, and what we make of those of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.storage.zarr import ZarrArray, describe_array, parse_array
from orbit_ckpt.errors import FormatError

FLOAT32 = np.dtype("<f4")
BIG = (100, 100)

ZARR2 = {
    "chunks": [2, 3],
    "compressor": None,
    "dimension_separator": ".",
    "dtype": "<f4",
    "fill_value": None,
    "filters": None,
    "order": "C",
    "shape": [4, 3],
    "zarr_format": 2,
}
ZARR3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 3],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0.0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
}
ORBAX_ZARR3 = ZARR3 | {
    "codecs": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [2, 3],
                "codecs": [
                    {"name": "bytes", "configuration": {"endian": "little"}},
                    {"name": "zstd", "configuration": {"checksum": False, "level": 3}},
                ],
                "index_codecs": [
                    {"name": "bytes", "configuration": {"endian": "little"}},
                    {"name": "crc32c"},
                ],
            },
        }
    ]
}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
BLOSC3 = {
    "name": "blosc",
    "configuration": {
        "cname": "zstd",
        "clevel": 1,
        "shuffle": "shuffle",
        "typesize": 4,
        "blocksize": 0,
    },
}
ZSTD3 = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}


def document(
    shape: tuple[int, ...], dtype: Any, *, zarr_format: int, compress: bool = False
) -> Any:
    """Return the document of an array in blocks of at most two rows."""
    chunks = tuple(max(1, min(n, 2) if axis == 0 else n) for axis, n in enumerate(shape))
    described = describe_array(
        shape, chunks, np.dtype(dtype), zarr_format=zarr_format, compress=compress
    )
    return json.loads(described[1])


def test_documents_are_these() -> None:
    assert document((4, 3), FLOAT32, zarr_format=2) == ZARR2
    assert document((4, 3), FLOAT32, zarr_format=3) == ZARR3


def test_documents_of_compressed_arrays_are_these() -> None:
    zarr2 = document(BIG, FLOAT32, zarr_format=2, compress=True)
    assert zarr2["compressor"] == {"id": "zstd", "level": 1}
    zarr3 = document(BIG, FLOAT32, zarr_format=3, compress=True)
    assert [codec["name"] for codec in zarr3["codecs"]] == ["bytes", "blosc", "crc32c"]
    assert zarr3["codecs"][1] == BLOSC3
    single_bytes = document((200, 100), np.int8, zarr_format=3, compress=True)
    assert [codec["name"] for codec in single_bytes["codecs"]] == ["bytes", "zstd", "crc32c"]
    assert single_bytes["codecs"][1] == ZSTD3


def test_small_arrays_are_not_compressed() -> None:
    for zarr_format in (2, 3):
        array, _ = describe_array(
            (64, 64), (64, 64), np.dtype("<u2"), zarr_format=zarr_format, compress=True
        )
        assert (array.compression, array.is_direct) == (None, True)
        array, _ = describe_array(
            (64, 128), (64, 64), np.dtype("<u2"), zarr_format=zarr_format, compress=True
        )
        expected = "zstd" if zarr_format == 2 else "blosc"
        assert (array.compression, array.is_direct) == (expected, True)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "name2", "name3", "fill"),
    [
        ("?", "|b1", "bool", False),
        ("<i1", "|i1", "int8", 0),
        ("<u2", "<u2", "uint16", 0),
        ("<i8", "<i8", "int64", 0),
        ("<f2", "<f2", "float16", 0.0),
        ("<f8", "<f8", "float64", 0.0),
        ("<c8", "<c8", "complex64", [0.0, 0.0]),
        (ml_dtypes.bfloat16, "bfloat16", "bfloat16", 0.0),
        (ml_dtypes.int4, "int4", "int4", 0),
        (ml_dtypes.float8_e4m3fn, "float8_e4m3fn", "float8_e4m3fn", 0.0),
        (ml_dtypes.float4_e2m1fn, "float4_e2m1fn", "float4_e2m1fn", 0.0),
    ],
    ids=str,
)
def test_dtypes_have_these_names(
    dtype: Any, name2: str, name3: str, fill: object, zarr_format: int, tmp_path: Path
) -> None:
    fields = document((4, 3), dtype, zarr_format=zarr_format)
    assert fields["dtype" if zarr_format == 2 else "data_type"] == (name2, name3)[zarr_format - 2]
    assert fields["fill_value"] == (None, fill)[zarr_format - 2]
    array = open_with_tensorstore(fields, zarr_format, tmp_path)
    assert array.dtype.numpy_dtype == np.dtype(dtype)
    assert array.shape == (4, 3)
    assert array.chunk_layout.write_chunk.shape == (2, 3)


def open_with_tensorstore(fields: object, zarr_format: int, directory: Path) -> ts.TensorStore:
    directory.mkdir(exist_ok=True)
    (directory / ("zarr.json" if zarr_format == 3 else ".zarray")).write_text(json.dumps(fields))
    driver = "zarr3" if zarr_format == 3 else "zarr"
    return ts.open({"driver": driver, "kvstore": f"file://{directory}/"}, open=True).result()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("shape", [(), (7,), (0, 3), (3, 0), (2, 3, 4), BIG], ids=str)
def test_tensorstore_opens_what_we_describe_and_we_read_it_back(
    shape: tuple[int, ...], compress: bool, zarr_format: int, tmp_path: Path
) -> None:
    fields = document(shape, FLOAT32, zarr_format=zarr_format, compress=compress)
    assert open_with_tensorstore(fields, zarr_format, tmp_path).shape == shape
    parsed = parse_array(json.dumps(fields).encode(), zarr_format=zarr_format, where="x")
    described, _ = describe_array(
        shape, parsed.chunk_shape, FLOAT32, zarr_format=zarr_format, compress=compress
    )
    assert parsed == described


@pytest.mark.parametrize(
    ("shape", "keys2", "keys3"),
    [
        ((), ["0"], ["c"]),
        ((3,), ["0", "1"], ["c/0", "c/1"]),
        ((3, 2), ["0.0", "1.0"], ["c/0/0", "c/1/0"]),
    ],
    ids=str,
)
def test_chunk_keys_are_where_tensorstore_writes(
    shape: tuple[int, ...], keys2: list[str], keys3: list[str], tmp_path: Path
) -> None:
    for zarr_format, keys in ((2, keys2), (3, keys3)):
        fields = document(shape, FLOAT32, zarr_format=zarr_format)
        array = open_with_tensorstore(fields, zarr_format, tmp_path / str(zarr_format))
        array.write(np.ones(shape, np.float32)).result()
        parsed = parse_array(json.dumps(fields).encode(), zarr_format=zarr_format, where="x")
        rows = range(2) if shape else [None]
        found = [
            parsed.chunk_key("", () if row is None else (row, 0)[: len(shape)]) for row in rows
        ]
        assert found == keys
        for key in keys:
            assert (tmp_path / str(zarr_format) / key).is_file()
        assert parsed.chunk_key("a.b", (1, 2)) == ("a.b/1.2" if zarr_format == 2 else "a.b/c/1/2")


def test_documents_of_orbax_are_understood() -> None:
    array = parse_array(json.dumps(ORBAX_ZARR3).encode(), zarr_format=3, where="x")
    assert (array.shape, array.chunk_shape, array.dtype) == ((4, 3), (2, 3), FLOAT32)
    assert (array.compression, array.is_direct) == ("zstd", False)
    zarr2 = ZARR2 | {"compressor": {"id": "zstd", "level": 1}, "dtype": "bfloat16"}
    array = parse_array(json.dumps(zarr2).encode(), zarr_format=2, where="x")
    assert (array.compression, array.dtype) == ("zstd", np.dtype(ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    ("zarr_format", "change"),
    [
        (2, {"dtype": ">f4"}),
        (2, {"order": "F"}),
        (2, {"filters": [{"id": "delta"}]}),
        (2, {"compressor": {"id": "blosc"}}),
        (3, {"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]}),
        (
            3,
            {
                "codecs": [
                    {"name": "transpose", "configuration": {"order": [1, 0]}},
                    *ZARR3["codecs"],
                ]
            },
        ),
        (3, {"codecs": [ZARR3["codecs"][0], {"name": "gzip", "configuration": {"level": 1}}]}),
        (3, {"chunk_key_encoding": {"name": "v2"}}),
        (3, {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}}),
    ],
    ids=lambda value: None if isinstance(value, int) else json.dumps(value),
)
def test_what_needs_decoding_is_left_to_tensorstore(
    zarr_format: int, change: dict[str, object]
) -> None:
    fields = (ZARR2 if zarr_format == 2 else ZARR3) | change
    assert not parse_array(
        json.dumps(fields).encode(), zarr_format=zarr_format, where="x"
    ).is_direct


@pytest.mark.parametrize(
    ("zarr_format", "text"),
    [
        (2, b""),
        (2, b"[]"),
        (2, b"null"),
        (2, b"\xff{}"),
        (2, b"{}"),
        (2, json.dumps(ZARR2)[:-1].encode()),
        (2, json.dumps(ZARR2 | {"shape": [4, -3]}).encode()),
        (2, json.dumps(ZARR2 | {"shape": [4.0, 3]}).encode()),
        (2, json.dumps(ZARR2 | {"shape": "43"}).encode()),
        (2, json.dumps(ZARR2 | {"chunks": [2]}).encode()),
        (2, json.dumps(ZARR2 | {"chunks": [0, 3]}).encode()),
        (2, json.dumps(ZARR2 | {"dtype": "|O"}).encode()),
        (2, json.dumps(ZARR2 | {"dtype": [["a", "<f4"]]}).encode()),
        (2, json.dumps(ZARR2 | {"dtype": "float99"}).encode()),
        (2, json.dumps(ZARR2 | {"compressor": "zstd"}).encode()),
        (3, json.dumps(ZARR2).encode()),
        (3, json.dumps(ZARR3 | {"node_type": "group"}).encode()),
        (3, json.dumps(ZARR3 | {"chunk_grid": {"name": "rectangular"}}).encode()),
        (3, json.dumps(ZARR3 | {"codecs": []}).encode()),
        (3, json.dumps(ZARR3 | {"codecs": {}}).encode()),
        (3, json.dumps(ZARR3 | {"codecs": ["bytes"]}).encode()),
        (3, json.dumps(ZARR3 | {"data_type": "string"}).encode()),
        (3, json.dumps(ZARR3 | {"data_type": 5}).encode()),
        (3, b"[" * 100_000),
    ],
)
def test_bad_documents_say_where_and_what(zarr_format: int, text: bytes) -> None:
    with pytest.raises(FormatError, match=rf"a\.w: not a zarr{zarr_format} metadata document"):
        parse_array(text, zarr_format=zarr_format, where="a.w")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10) | st.floats() | st.text(max_size=3),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3)
    ),
    max_leaves=5,
)


@given(st.data(), st.sampled_from([(2, ZARR2), (3, ZARR3), (3, ORBAX_ZARR3)]))
def test_any_change_of_a_document_is_refused_or_makes_sense(
    data: st.DataObject, form: tuple[int, dict[str, Any]]
) -> None:
    zarr_format, fields = form
    changed = json.loads(json.dumps(fields))
    node, key = changed, data.draw(st.sampled_from(sorted(fields)))
    while isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans()):
        node = node[key]
        keys = sorted(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
    node[key] = data.draw(json_values)
    try:
        array = parse_array(json.dumps(changed).encode(), zarr_format=zarr_format, where="x")
    except FormatError:
        return
    assert isinstance(array, ZarrArray)
    assert len(array.shape) == len(array.chunk_shape)
    assert array.chunk_nbytes >= 0
    assert array.chunk_key("x", (0,) * len(array.shape)).startswith("x/")
