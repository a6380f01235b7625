"""Blosc frames: other readers decode ours, we decode theirs, and damage raises an error."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from orbit_ckpt._src.arrays.slices import Region, whole
from orbit_ckpt._src.arrays.transfer import Shard
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.batch_write import BatchWriter, WriteOptions
from orbit_ckpt._src.storage.blosc import FrameError, FrameReader
from orbit_ckpt._src.storage.blosc_write import FrameWriter
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.codec import encode_chunk
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.kvstore import open_store
from orbit_ckpt._src.storage.part_write import ArrayWrite
from orbit_ckpt._src.storage.zarr import describe_array
from orbit_ckpt.errors import CorruptionError

RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal(40_000).astype(np.float32)
DTYPES = [
    *("float16", "float32", "float64", "int16", "uint16", "int32", "int64", "uint64"),
    *("complex64", "complex128", "bool", "int8", "uint8", "bfloat16", "int4", "float8_e4m3fn"),
    "float8_e5m2",
]


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def encode(data: bytes, itemsize: int, pieces: int = 1 << 20, *, min_saving: float = 0) -> bytes:
    writer = FrameWriter(len(data), itemsize, min_saving=min_saving)
    view = memoryview(data)
    cut = [view[i : i + pieces] for i in range(0, len(data), pieces)]
    return b"".join(list(writer.encode(cut)))


def decode(frame: bytes, nbytes: int, *, size: int = 1 << 20) -> bytes:
    rest = memoryview(frame)

    def read(wanted: int) -> bytes:
        nonlocal rest
        data, rest = bytes(rest[: min(wanted, size)]), rest[min(wanted, size) :]
        return data

    reader = FrameReader(read, len(frame), nbytes)
    found = bytearray()
    while data := reader.read(size):
        found += data
    return bytes(found)


def decode_with_tensorstore(frame: bytes, nbytes: int, itemsize: int) -> bytes:
    blosc = {"cname": "zstd", "clevel": 1, "blocksize": 0}
    blosc |= {"shuffle": "shuffle", "typesize": itemsize}
    metadata = {
        "shape": [nbytes],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [nbytes]}},
        "codecs": [{"name": "bytes"}, {"name": "blosc", "configuration": blosc}],
    }
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    array = ts.open(spec, create=True).result()
    store = array.kvstore
    assert store is not None
    store.write("c/0", frame).result()
    return array.read().result().tobytes()


@st.composite
def numbers(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw elements, and the size of one."""
    itemsize = draw(st.sampled_from([2, 3, 4, 8, 16]))
    count = draw(st.integers(128, 3000) | st.integers(60_000, 140_000))
    kind = draw(st.sampled_from(["weights", "noise", "zeros", "half zeros", "tiled"]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    nbytes = count * itemsize
    if kind == "weights":
        data = rng.standard_normal(-(-nbytes // 4), np.float32).tobytes()[:nbytes]
    elif kind == "tiled":
        data = (rng.bytes(640) * (nbytes // 640 + 1))[:nbytes]
    else:
        zeros = {"noise": 0, "zeros": nbytes, "half zeros": nbytes // 2}[kind]
        data = bytes(zeros) + rng.bytes(nbytes - zeros)
    return data, itemsize


@given(numbers(), st.integers(1000, 400_000), st.integers(1000, 400_000))
@example((WEIGHTS.tobytes(), 4), 1 << 20, 1 << 20)
@example((bytes(1 << 19), 2), 100_001, 99_999)
def test_elements_come_back_from_a_frame(
    elements: tuple[bytes, int], pieces: int, size: int
) -> None:
    data, itemsize = elements
    frame = encode(data, itemsize, pieces)
    assert len(frame) < 1.01 * len(data) + 100
    assert decode(frame, len(data), size=size) == data


@pytest.mark.parametrize("itemsize", [2, 4, 8, 16])
@pytest.mark.parametrize("count", [128, 1001, 65_536, 70_001, 700_003])
def test_tensorstore_decodes_our_frames(count: int, itemsize: int) -> None:
    data = RNG.standard_normal(count * itemsize // 2).astype(np.float16).tobytes()
    assert decode_with_tensorstore(encode(data, itemsize), len(data), itemsize) == data


def test_exponents_shrink_and_mantissas_do_not_grow() -> None:
    halves = (WEIGHTS.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # bfloat16
    assert len(encode(halves, 2)) < 0.70 * len(halves)
    assert len(encode(WEIGHTS.tobytes(), 4)) < 0.86 * WEIGHTS.nbytes


@pytest.mark.parametrize("nbytes", [512, 300_000, 3_000_000])
def test_what_saves_too_little_is_stored_as_it_is(nbytes: int) -> None:
    data = RNG.bytes(nbytes)
    frame = encode(data, 4, min_saving=0.1)
    assert frame[16:] == data
    assert decode(frame, nbytes, size=70_000) == data
    assert decode_with_tensorstore(frame, nbytes, 4) == data


@pytest.mark.parametrize("nbytes", [3_000_000, 1 << 26])
def test_numbers_of_arrays_of_any_size_shrink(nbytes: int) -> None:
    chunk = RNG.standard_normal(400_000, np.float32)

    def ratio(values: np.ndarray) -> float:
        shape = (nbytes // values.itemsize,)
        layout, _ = describe_array(shape, values.shape, values.dtype, zarr_format=3, compress=True)
        parts = encode_chunk(layout, [memoryview(values.view(np.uint8))], values.nbytes)
        return sum(memoryview(part).nbytes for part in parts) / values.nbytes

    assert ratio(chunk) < 0.86
    halves = chunk.astype(ml_dtypes.bfloat16)
    assert ratio(halves) < 0.70
    assert ratio(halves.astype(np.float32)) < 0.40
    assert ratio(np.where(np.arange(chunk.size) // 4000 % 4, 0, chunk)) < 0.30


def test_zeros_at_the_start_do_not_decide_about_the_rest() -> None:
    data = bytes(600_000) + np.tile(WEIGHTS, 4).tobytes()
    assert len(encode(data, 4)) < 0.86 * (len(data) - 600_000) + 2000


def test_a_large_chunk_is_encoded_in_little_memory() -> None:
    values = RNG.standard_normal(6_000_000).astype(np.float32)
    layout, _ = describe_array(
        values.shape, values.shape, values.dtype, zarr_format=3, compress=True
    )
    tracemalloc.start()
    try:
        pieces = [memoryview(values).cast("B")]
        nbytes = sum(memoryview(p).nbytes for p in encode_chunk(layout, pieces, values.nbytes))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * values.nbytes < nbytes < 0.86 * values.nbytes
    assert peak < 4_000_000


def blocks_in_reverse(frame: bytes) -> bytes:
    """Return a frame with its blocks in the reverse order, as several threads may write them."""
    elements, block, _ = struct.unpack_from("<iii", frame, 4)
    count = -(-elements // block)
    starts = list(struct.unpack_from(f"<{count}i", frame, 16))
    head = 16 + 4 * count
    pieces = [frame[a:b] for a, b in itertools.pairwise([*starts, len(frame)])]
    position, places = head, [0] * count
    for i in reversed(range(count)):
        places[i] = position
        position += len(pieces[i])
    return frame[:16] + struct.pack(f"<{count}i", *places) + b"".join(reversed(pieces))


def test_blocks_may_be_in_any_order() -> None:
    data = np.tile(WEIGHTS, 8).tobytes()
    frame = encode(data, 4)
    assert decode(blocks_in_reverse(frame), len(data)) == data


@given(st.data())
def test_a_changed_frame_is_refused_or_has_the_size_of_its_elements(drawn: st.DataObject) -> None:
    data = WEIGHTS[: drawn.draw(st.sampled_from([200, 3000, 40_000]))].tobytes() * 8
    frame = bytearray(encode(data, 4))
    for _ in range(drawn.draw(st.integers(1, 3))):
        last = drawn.draw(st.sampled_from([4, 16, 40, len(frame) - 1]))
        position = drawn.draw(st.integers(0, last))
        frame[position] = drawn.draw(st.integers(0, 255))
    kept = drawn.draw(st.just(len(frame)) | st.integers(0, len(frame)))
    try:
        found = decode(bytes(frame[:kept]), len(data))
    except (FrameError, zstandard.ZstdError):
        return
    assert len(found) == len(data)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (4, 2**31 - 1, "does not decompress to"),
        (4, -1, "does not decompress to"),
        (8, 0, "blocks of 0 bytes"),
        (8, -5, "blocks of -5 bytes"),
        (8, 2**31 - 1, "blocks of 2147483647 bytes"),
        (8, 1, "positions of its blocks"),
        (12, 2**31 - 1, "are a Blosc frame of"),
        (12, 0, "are a Blosc frame of"),
        (16, 2**31 - 1, "positions of its blocks"),
        (16, 0, "positions of its blocks"),
        (24, 2**31 - 1, "a stream of it has"),
        (24, 0, "a stream of it has 0 bytes"),
    ],
)
def test_absurd_numbers_are_refused_before_memory_is_taken(
    field: int, value: int, expected: str
) -> None:
    data = np.tile(WEIGHTS, 8).tobytes()  # of two blocks
    frame = bytearray(encode(data, 4))
    struct.pack_into("<i", frame, field, value)
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match=expected):
            decode(bytes(frame), len(data))
        assert tracemalloc.get_traced_memory()[1] < 8 * len(data)
    finally:
        tracemalloc.stop()


def test_a_stream_that_claims_a_huge_content_is_refused() -> None:
    data = WEIGHTS.tobytes()
    huge = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    streams = b"".join(len(huge).to_bytes(4, "little") + huge for _ in range(4))
    size = 20 + len(streams)
    frame = struct.pack("<BBBBiiii", 2, 1, 4 << 5 | 1, 4, len(data), len(data), size, 20) + streams
    with pytest.raises(FrameError, match=f"does not decompress to {len(data) // 4} bytes"):
        decode(frame, len(data))


def test_streams_of_another_compressor_than_the_document_says_are_named() -> None:
    data = WEIGHTS.tobytes()
    frame = bytearray(encode(data, 4))
    frame[2] = 1 << 5 | 1
    with pytest.raises(FrameError, match="its streams are lz4"):
        decode(bytes(frame), len(data))


# whole arrays, in stores


def write(
    directory: Path, name: str, value: np.ndarray, chunks: tuple[int, ...], **how: Any
) -> Any:
    """Write an array in chunks; return its document."""
    layout, document = describe_array(
        value.shape, chunks, value.dtype, **{"zarr_format": 3, "compress": True, **how}
    )
    writer = BatchWriter(WriteOptions(directory, use_ocdbt=False))
    shards = [Shard(whole(value.shape), value)]
    writer.add(ArrayWrite(name, layout, document, shards, value.dtype, (name,)))
    asyncio.run(writer.commit())
    return json.loads(document)


def read(directory: Path, name: str, zarr_format: int = 3) -> np.ndarray:
    reader = BatchReader(open_store(CheckedDirectory(directory)), zarr_format=zarr_format)
    (layout,) = reader.layouts([((name,), name)])
    wanted = [whole(layout.shape)]
    ((found,),) = asyncio.run(reader.read([ArrayRead((name,), name, layout, wanted)]))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunks", [(301, 103), (64, 103), (301, 40)], ids=str)
def test_tensorstore_reads_every_dtype_that_we_compress(
    dtype: str, chunks: tuple[int, int], tmp_path: Path
) -> None:
    numbers = RNG.standard_normal((301, 103)) * 3
    value = numbers.astype(dtype_of(dtype))
    document = write(tmp_path, "w", value, chunks)
    codecs = [codec["name"] for codec in document["codecs"]]
    assert codecs == ["bytes", "blosc" if value.itemsize > 1 else "zstd", "crc32c"]
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/w/"}
    assert ts.open(spec, open=True).result().read().result().tobytes() == value.tobytes()
    found = read(tmp_path, "w")
    assert (found.dtype, found.tobytes()) == (value.dtype, value.tobytes())


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shuffle", [0, 1, 2])
@pytest.mark.parametrize("cname", ["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"])
def test_every_codec_of_blosc_is_read(
    cname: str, shuffle: int, zarr_format: int, tmp_path: Path
) -> None:
    names = ("noshuffle", "shuffle", "bitshuffle")
    value = RNG.integers(-3, 90, (300, 401)).astype(np.int32)
    for level in (0, 1, 5):
        if zarr_format == 3:
            how: dict[str, Any] = {"cname": cname, "clevel": level, "shuffle": names[shuffle]}
            how |= {"typesize": 4, "blocksize": 0}
            codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
            metadata: dict[str, Any] = {
                "codecs": [*codecs, {"name": "blosc", "configuration": how}, {"name": "crc32c"}],
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [128, 401]}},
                "data_type": "int32",
            }
        else:
            how = {"id": "blosc", "cname": cname, "clevel": level, "shuffle": shuffle}
            metadata = {"compressor": how, "chunks": [128, 401], "dtype": "<i4"}
        spec = {
            "driver": "zarr3" if zarr_format == 3 else "zarr",
            "kvstore": f"file://{tmp_path}/{level}/",
            "metadata": {**metadata, "shape": [300, 401]},
        }
        ts.open(spec, create=True).result().write(value).result()
        assert np.array_equal(read(tmp_path, str(level), zarr_format), value)


@pytest.mark.parametrize("cname", ["lz4", "zstd"])
def test_a_damaged_frame_of_zarr2_is_named_before_memory_is_taken(
    cname: str, tmp_path: Path
) -> None:
    value = RNG.integers(-3, 90, (300, 400)).astype(np.int32)
    how = {"id": "blosc", "cname": cname, "clevel": 1, "shuffle": 1}
    metadata = {"compressor": how, "chunks": [300, 400], "dtype": "<i4", "shape": [300, 400]}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/w/", "metadata": metadata}
    ts.open(spec, create=True).result().write(value).result()
    file = tmp_path / "w/0.0"
    whole_frame = file.read_bytes()
    for position in (4, 8, 12):
        frame = bytearray(whole_frame)
        struct.pack_into("<i", frame, position, 2**31 - 2**20)
        file.write_bytes(frame)
        with pytest.raises(CorruptionError, match=r"w: chunk 'w/0\.0' in .* is damaged"):
            read(tmp_path, "w", 2)
    for kept in (0, 3, 15, 16, 100, len(whole_frame) - 1):
        file.write_bytes(whole_frame[:kept])
        with pytest.raises(CorruptionError, match=r"w: chunk 'w/0\.0' in .* is damaged"):
            read(tmp_path, "w", 2)


@pytest.mark.parametrize("kind", ["weights", "noise"])
@pytest.mark.parametrize("nbytes", [100_000, 9_000_000])
def test_every_damage_to_a_stored_chunk_is_named(nbytes: int, kind: str, tmp_path: Path) -> None:
    value = RNG.standard_normal(nbytes // 4).astype(np.float32)
    if kind == "noise":  # which is not encoded
        value = np.frombuffer(RNG.bytes(nbytes), np.int32)
    write(tmp_path, "w", value, value.shape)
    file = tmp_path / "w/c/0"
    stored = file.read_bytes()
    for position in [2, 5, 9, 13, *np.linspace(0, len(stored) - 1, 12, dtype=int).tolist()]:
        damaged = bytearray(stored)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(damaged)
        with pytest.raises(CorruptionError, match=r"chunk 'w/c/0' in .*: its checksum does not"):
            read(tmp_path, "w")
    for kept in (0, 3, 15, 19, 30, len(stored) // 2, len(stored) - 1):
        file.write_bytes(stored[:kept])
        with pytest.raises(CorruptionError, match=r"chunk 'w/c/0' in .* is damaged"):
            read(tmp_path, "w")
    file.write_bytes(stored)
    assert np.array_equal(read(tmp_path, "w"), value)


def test_a_part_of_a_compressed_array_is_read(tmp_path: Path) -> None:
    value = RNG.standard_normal((500, 1031)).astype(np.float32)
    write(tmp_path, "w", value, (500, 1031))
    reader = BatchReader(open_store(CheckedDirectory(tmp_path)), zarr_format=3)
    (layout,) = reader.layouts([(("w",), "w")])
    region = Region((17, 5), (300, 900))
    ((found,),) = asyncio.run(reader.read([ArrayRead(("w",), "w", layout, [region])]))
    assert np.array_equal(found, value[17:317, 5:905])
