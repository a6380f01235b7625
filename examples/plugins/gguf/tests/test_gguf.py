"""Files that llama.cpp's own package writes are read, and it reads those that are written here."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointError, CorruptionError, FormatError, UnsupportedLeafError
from orbit_ckpt.formats import register_format
from orbit_ckpt_gguf import GGUFFormat
from orbit_ckpt_gguf.read import chunk_shape

WEIGHTS = np.random.default_rng(0).normal(size=(3, 40, 64)).astype(np.float32)
READER = GGUFFormat()


@pytest.fixture(autouse=True)
def _registered() -> None:
    register_format(GGUFFormat(), override=True)


def write_reference(path: Path, **tensors: Any) -> Path:
    """Write tensors with llama.cpp's package; a pair is of a tensor and its type."""
    writer = GGUFWriter(path, "llama")
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            values, kind = tensor
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["<s>", "größe", ""])
    writer.add_token_types([3, 1, 1])
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_bool("flag", True)
    writer.add_int64("big", -(2**40))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read_reference(path: Path) -> dict[str, np.ndarray]:
    """Read tensors with llama.cpp's package."""
    found: dict[str, np.ndarray] = {}
    for tensor in GGUFReader(path).tensors:
        data = tensor.data
        if tensor.tensor_type is GGMLQuantizationType.BF16:
            data = data.view(ml_dtypes.bfloat16)
        elif tensor.tensor_type is GGMLQuantizationType.Q8_0:
            data = dequantize(data, tensor.tensor_type)
        found[tensor.name] = np.array(data)
    return found


def assert_same(found: Any, expected: Any) -> None:
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        assert found[name].tobytes() == value.tobytes(), name


def test_files_of_llama_cpp_are_read(tmp_path: Path) -> None:
    path = write_reference(
        tmp_path / "m.gguf",
        single=WEIGHTS,
        half=WEIGHTS.astype(np.float16),
        brain=(WEIGHTS, GGMLQuantizationType.BF16),
        eighth=(WEIGHTS, GGMLQuantizationType.Q8_0),
        vector=(WEIGHTS[0, 0], GGMLQuantizationType.Q8_0),
        counts=np.arange(5, dtype=np.int32),
        double=WEIGHTS[0].astype(np.float64),
    )
    assert_same(ocp.load(path), read_reference(path))
    assert ocp.verify(path).is_intact


def test_metadata_is_custom_metadata(tmp_path: Path) -> None:
    path = write_reference(tmp_path / "m.gguf", w=WEIGHTS)
    assert ocp.metadata(path).custom_metadata == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
        "tokenizer.ggml.tokens": ["<s>", "größe", ""],
        "tokenizer.ggml.token_type": [3, 1, 1],
        "nested": [[1, 2], [3]],
        "flag": True,
        "big": -(2**40),
    }


def test_another_alignment_is_read(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_custom_alignment(128)
    writer.add_tensor("a", WEIGHTS[0, 0, :3].copy())
    writer.add_tensor("b", WEIGHTS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_same(ocp.load(tmp_path / "m.gguf"), {"a": WEIGHTS[0, 0, :3], "b": WEIGHTS})


def test_version_2_is_read(tmp_path: Path) -> None:
    path = write_reference(tmp_path / "m.gguf", w=WEIGHTS)
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    path.write_bytes(data)
    assert_same(ocp.load(path), {"w": WEIGHTS})


def test_parts_of_a_quantized_tensor_are_decoded_alone(tmp_path: Path) -> None:
    large = np.random.default_rng(1).normal(size=(40, 200, 64)).astype(np.float32)
    path = write_reference(tmp_path / "m.gguf", w=(large, GGMLQuantizationType.Q8_0))
    expected = read_reference(path)["w"]
    lazy = ocp.load(path, lazy=True)["w"]
    assert (lazy[3, 5:9, ::2] == expected[3, 5:9, ::2]).all()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)
    with pytest.raises(CheckpointError):
        lazy.get()


def test_a_changed_file_is_not_read(tmp_path: Path) -> None:
    kinds = {"w": (WEIGHTS, GGMLQuantizationType.Q8_0), "v": WEIGHTS}
    path = write_reference(tmp_path / "m.gguf", **kinds)
    lazy = ocp.load(path, lazy=True)
    path.unlink()
    write_reference(path, v=WEIGHTS, w=(WEIGHTS, GGMLQuantizationType.Q8_0))
    for name in kinds:
        with pytest.raises(CheckpointError):
            lazy[name].get()
        with pytest.raises(CheckpointError):
            _ = lazy[name][0]


@pytest.mark.parametrize("shape", [(1, 32), (3, 96), (5, 7, 64), (2, 3, 5, 32), (640,)])
@pytest.mark.parametrize("room", [1, 32, 70, 10_000])
def test_chunks_lie_together_in_the_file(shape: tuple[int, ...], room: int) -> None:
    chunk = chunk_shape(shape, room)
    order = np.arange(np.prod(shape)).reshape(shape)
    for index in np.ndindex(*(-(-n // m) for n, m in zip(shape, chunk, strict=True))):
        box = tuple(slice(i * m, (i + 1) * m) for i, m in zip(index, chunk, strict=True))
        part = order[box].ravel()
        assert (np.diff(part) == 1).all()
        assert part[0] % 32 == part.size % 32 == 0


def test_shards_are_placed(tmp_path: Path) -> None:
    path = write_reference(tmp_path / "m.gguf", w=(WEIGHTS, GGMLQuantizationType.Q8_0))
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    sharding = jax.NamedSharding(mesh, jax.P(None, "x"))
    found = ocp.load(path, sharding=sharding)["w"]
    assert found.sharding == sharding
    assert (np.asarray(found) == read_reference(path)["w"]).all()


def test_other_quantizations_are_refused_by_name(tmp_path: Path) -> None:
    path = write_reference(
        tmp_path / "m.gguf", w=WEIGHTS, **{"blk.0": (WEIGHTS, GGMLQuantizationType.Q4_0)}
    )
    with pytest.raises(FormatError, match=r"m\.gguf: 1 tensors .* blk\.0 \(Q4_0\)\. F32, F16"):
        ocp.load(path)


TREE = {
    "layers": [{"w": WEIGHTS}, {"w": WEIGHTS[0].astype(np.float16)}],
    "brain": WEIGHTS.astype(ml_dtypes.bfloat16),
    "norm": np.arange(3.0),
    "scale": np.array(2.5, np.float32),
    "none": None,
}
FLAT = {
    "layers.0.w": WEIGHTS,
    "layers.1.w": WEIGHTS[0].astype(np.float16),
    "brain": TREE["brain"],
    "norm": TREE["norm"],
    "scale": TREE["scale"],
}


def test_llama_cpp_reads_what_is_converted(tmp_path: Path) -> None:
    ocp.save(tmp_path / "own", TREE)
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "eps": 1e-5,
        "tokens": ["a", ""],
        "types": [1, -2],
        "floats": [0.5, 2],
        "big": 2**40,
        "flag": False,
        "huge": 1e300,
        "other": {"a": None},
    }
    path = tmp_path / "m.gguf"
    ocp.convert(tmp_path / "own", path, to="gguf", custom_metadata=metadata)
    assert_same(read_reference(path), FLAT)
    assert_same(ocp.load(path), FLAT)
    fields = GGUFReader(path).fields
    assert {name: fields[name].types[-1].name for name in metadata} == {
        "general.architecture": "STRING",
        "llama.block_count": "UINT32",
        "eps": "FLOAT32",
        "tokens": "STRING",
        "types": "INT32",
        "floats": "FLOAT32",
        "big": "UINT64",
        "flag": "BOOL",
        "huge": "FLOAT64",
        "other": "STRING",
    }
    assert fields["types"].contents() == [1, -2]
    assert fields["other"].contents() == '{"a": null}'


def test_metadata_survives_conversions(tmp_path: Path) -> None:
    path = write_reference(tmp_path / "a.gguf", w=(WEIGHTS, GGMLQuantizationType.Q8_0))
    ocp.convert(path, tmp_path / "own")
    ocp.convert(tmp_path / "own", tmp_path / "b.gguf", to="gguf")
    before, after = (ocp.metadata(tmp_path / name).custom_metadata for name in ("a.gguf", "b.gguf"))
    assert isinstance(before, dict)
    assert after == {**before, "nested": "[[1, 2], [3]]"}
    assert_same(ocp.load(tmp_path / "b.gguf"), read_reference(path))


@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        (np.arange(3, dtype=np.uint8), "bad (uint8)"),
        (np.zeros((1,) * 5, np.float32), "bad (5 dimensions)"),
        ("text", "bad (str)"),
        (1j, "bad (complex128)"),
    ],
)
def test_leaves_that_gguf_lacks_are_refused(leaf: Any, why: str, tmp_path: Path) -> None:
    ocp.save(tmp_path / "own", {"bad": leaf})
    with pytest.raises(UnsupportedLeafError) as error:
        ocp.convert(tmp_path / "own", tmp_path / "m.gguf", to="gguf")
    assert why in str(error.value)
    assert not (tmp_path / "m.gguf").exists()


def test_names_that_are_too_long_are_refused(tmp_path: Path) -> None:
    ocp.save(tmp_path / "own", {"n" * 64: WEIGHTS})
    with pytest.raises(UnsupportedLeafError, match="a name of 64 bytes"):
        ocp.convert(tmp_path / "own", tmp_path / "m.gguf", to="gguf")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(tensors: int = 0, values: int = 0, *rest: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, values) + b"".join(rest)


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def hostile() -> Iterator[tuple[str, bytes, type[Exception], str]]:
    data = bytes(1024)
    number = text("k") + struct.pack("<II", 4, 1)
    yield "empty", b"GGUF", CorruptionError, "middle of its header"
    yield "old", b"GGUF" + struct.pack("<I", 1), FormatError, "version 1"
    yield "big-endian", b"GGUF" + struct.pack(">I", 3) + data, FormatError, "big-endian"
    yield "tensors", header(2**63), CorruptionError, "too few for 9223372036854775808 tensors"
    yield "values", header(0, 2**63), CorruptionError, "too few for .* metadata keys"
    yield "key", header(0, 1, struct.pack("<Q", 2**62), data), CorruptionError, "in the middle"
    yield "twice", header(0, 2, number, number), FormatError, "'k' occurs twice"
    yield "not UTF-8", header(0, 1, struct.pack("<Q", 1), b"\xff", data), FormatError, "UTF-8"
    strings = struct.pack("<IIQ", 9, 8, 2**60)
    yield "strings", header(0, 1, text("k"), strings, data), CorruptionError, "elements of 'k'"
    deep = struct.pack("<IQ", 9, 1) * 2000
    nested = header(0, 1, text("k"), struct.pack("<I", 9), deep)
    yield "deep", nested, FormatError, "nested too deep"
    yield "kind", header(0, 1, text("k"), struct.pack("<I", 13), data), FormatError, "type 13"
    boolean = header(0, 1, text("k"), struct.pack("<IB", 7, 2), data)
    yield "boolean", boolean, FormatError, "neither true nor false"
    for alignment in (0, 3):
        value = text("general.alignment") + struct.pack("<II", 4, alignment)
        bad = header(1, 1, value, tensor("a", (1,)), data)
        yield f"alignment {alignment}", bad, FormatError, "power of two"
    same = tensor("a", (8,)) + tensor("a", (8,), offset=32)
    yield "names", header(2, 0, same, data), FormatError, "two tensors are called 'a'"
    far = header(1, 0, tensor("a", (8,), offset=2**40), data)
    yield "far", far, FormatError, "begins at"
    overlap = tensor("a", (8,)) + tensor("b", (8,))
    yield "overlap", header(2, 0, overlap, data), FormatError, "'b' begins at"
    yield "rank", header(1, 0, tensor("a", (1,) * 5), data), FormatError, "5 dimensions"
    huge = header(1, 0, tensor("a", (2**40, 2**40)), data)
    yield "huge", huge, FormatError, "impossible shape"
    zero = header(1, 0, tensor("a", (2**63, 0)), data)
    yield "zero", zero, FormatError, "impossible shape"
    yield "short", header(1, 0, tensor("a", (2**30,)), data), CorruptionError, "'a' ends at"
    yield "long", header(1, 0, tensor("a", (8,)), data), FormatError, "belong to no tensor"
    yield "blocks", header(1, 0, tensor("a", (33,), 8), data), FormatError, "multiple of 32"
    yield "scalar", header(1, 0, tensor("a", (), 8), data), FormatError, "multiple of 32"
    yield "type", header(1, 0, tensor("a", (8,), 99), data), FormatError, "unknown type 99"


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [pytest.param(*rest, id=name) for name, *rest in hostile()],
)
def test_hostile_files_are_refused(
    data: bytes, error: type[Exception], match: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(error, match=match):
        ocp.load(path)


def test_a_truncated_file_is_never_loaded(tmp_path: Path) -> None:
    path = write_reference(
        tmp_path / "m.gguf", w=WEIGHTS[0], q=(WEIGHTS[0], GGMLQuantizationType.Q8_0)
    )
    data = path.read_bytes()
    for size in (*range(4, 500), *range(500, len(data) - 32, 97)):
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            ocp.load(path)


def test_a_file_without_tensors_is_an_empty_tree(tmp_path: Path) -> None:
    path = write_reference(tmp_path / "m.gguf")
    assert ocp.load(path) == {}
    assert ocp.verify(path).is_intact
