"""Print how much codecs shrink typical arrays, and the speed of one core with each.

Usage: python -m benchmarks.codecs [--megabytes N] [--rounds N]

Every cell is the stored size as a part of the array's, and megabytes of the array per second of
processor time, saving and loading; of several rounds in turns, the fastest. Checksums and copies to
and from memory are included. `orbit_ckpt` is what it does by default. TensorStore encodes and
decodes what its name begins; the store is in memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import tensorstore as ts
import zstandard
from crc32c import crc32c

from orbit_ckpt._src.storage.codec import PIECE_BYTES, decode_chunk, encode_chunk
from orbit_ckpt._src.storage.zarr import describe_array

Codec = tuple[Callable[[np.ndarray], bytes], Callable[[bytes, np.ndarray], object]]
"""Encodes an array; decodes into an array."""

MB = 2**20


def make_arrays(nbytes: int) -> dict[str, np.ndarray]:
    """Return arrays like those of training, of one chunk each."""
    rng = np.random.default_rng(0)
    width = 1024

    def normal(itemsize: int) -> np.ndarray:
        return rng.standard_normal((nbytes // itemsize // width, width), np.float32)

    def moments() -> np.ndarray:
        """Return gradients whose size differs from row to row."""
        values = normal(4)
        return values * np.exp(rng.standard_normal((len(values), 1), np.float32)) * 1e-4

    embedding = moments()
    embedding[rng.random(len(embedding)) < 0.7] = 0  # words that never occur
    ids = rng.zipf(1.2, nbytes // 4).clip(max=50_256)
    return {
        "weights, bfloat16": (0.02 * normal(2)).astype(ml_dtypes.bfloat16),
        "weights, float32": 0.02 * normal(4),
        "weights, float32 from bfloat16": normal(4).astype(ml_dtypes.bfloat16).astype(np.float32),
        "Adam mu, float32": moments(),
        "Adam nu, float32": np.square(moments()),
        "Adam mu of an embedding, 70 % rows zero": embedding,
        "quantised weights, int8": np.clip(normal(1) * 32, -127, 127).astype(np.int8),
        "token ids, int32": ids.astype(np.int32).reshape(-1, width),
        "zeros, float32": np.zeros((nbytes // 4 // width, width), np.float32),
    }


def _bytes_of(array: np.ndarray) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def ours(*, compress: bool) -> Codec:
    """Return the library's codec."""

    def layout(array: np.ndarray) -> Any:
        return describe_array(
            array.shape, array.shape, array.dtype, zarr_format=3, compress=compress
        )[0]

    def encode(array: np.ndarray) -> bytes:
        parts = list(encode_chunk(layout(array), [_bytes_of(array)], array.nbytes))
        return b"".join(parts)

    def decode(encoded: bytes, into: np.ndarray) -> None:
        decode_chunk(layout(into), memoryview(encoded), _bytes_of(into))

    return encode, decode


def zstd(level: int) -> Codec:
    """Return zstd without shuffling, in pieces as files are written."""

    def encode(array: np.ndarray) -> bytes:
        compressor = zstandard.ZstdCompressor(level=level).compressobj(size=array.nbytes)
        data = _bytes_of(array)
        starts = range(0, data.nbytes, PIECE_BYTES)
        parts = [compressor.compress(data[i : i + PIECE_BYTES]) for i in starts]
        encoded = b"".join([*parts, compressor.flush()])
        return encoded + crc32c(encoded).to_bytes(4, "little")

    def decode(encoded: bytes, into: np.ndarray) -> None:
        crc32c(encoded)
        reader = zstandard.ZstdDecompressor().stream_reader(encoded[:-4])
        target, done = _bytes_of(into), 0
        while done < target.nbytes:
            done += reader.readinto(target[done:])  # pyright: ignore[reportArgumentType] - stubs

    return encode, decode


def tensorstore(*codecs: Mapping[str, Any]) -> Codec:
    """Return TensorStore's zarr3 driver with codecs between `bytes` and `crc32c`."""

    def open_memory(array: np.ndarray) -> Any:
        grid = {"name": "regular", "configuration": {"chunk_shape": array.shape}}
        endian = {"configuration": {"endian": "little"}} if array.itemsize > 1 else {}
        metadata = {
            "shape": array.shape,
            "data_type": array.dtype.name,
            "chunk_grid": grid,
            "codecs": [{"name": "bytes", **endian}, *codecs, {"name": "crc32c"}],
        }
        spec = {
            "driver": "zarr3",
            "kvstore": "memory://",
            "metadata": metadata,
            "store_data_equal_to_fill_value": True,
        }
        return ts.open(spec, create=True, context=ts.Context()).result()

    def encode(array: np.ndarray) -> bytes:
        store = open_memory(array)
        store.write(array).result()
        return store.kvstore.read("c/0/0").result().value

    def decode(encoded: bytes, into: np.ndarray) -> None:
        store = open_memory(into)
        store.kvstore.write("c/0/0", encoded).result()
        into[...] = store.read().result()

    return encode, decode


def _blosc(cname: str, shuffle: str) -> Mapping[str, Any]:
    how = {"cname": cname, "clevel": 1, "shuffle": shuffle, "blocksize": 0}
    return {"name": "blosc", "configuration": how}


CODECS: dict[str, Codec] = {
    "orbit_ckpt": ours(compress=True),
    "none": ours(compress=False),
    "zstd -1": zstd(-1),
    "zstd 1": zstd(1),
    "zstd 3, TensorStore": tensorstore({"name": "zstd", "configuration": {"level": 3}}),
    "blosc lz4 bitshuffle, TensorStore": tensorstore(_blosc("lz4", "bitshuffle")),
    "blosc zstd shuffle, TensorStore": tensorstore(_blosc("zstd", "shuffle")),
}


def measure(array: np.ndarray, rounds: int) -> dict[str, str]:
    """Return the figures of one array by codec.

    Raises:
        ValueError: A codec gives back something else.
    """
    stored = {name: encode(array) for name, (encode, _) in CODECS.items()}
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, (encode, decode) in CODECS.items():
            into = np.empty_like(array)
            start = time.process_time()
            encode(array)
            middle = time.process_time()
            decode(stored[name], into)
            end = time.process_time()
            times.setdefault((name, "save"), []).append(middle - start)
            times.setdefault((name, "load"), []).append(end - middle)
            if _bytes_of(into) != _bytes_of(array):
                raise ValueError(f"{name} gives back something else")
    return {
        name: f"{len(encoded) / array.nbytes:.3f} "
        + " / ".join(f"{array.nbytes / 1e6 / min(times[name, op]):,.0f}" for op in ("save", "load"))
        for name, encoded in stored.items()
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=16, help="size of each array")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each cell")
    options = parser.parse_args()
    print("| array |", " | ".join(CODECS), "|")
    print("|---" * (len(CODECS) + 1) + "|")
    for name, array in make_arrays(options.megabytes * MB).items():
        print(f"| {name} |", " | ".join(measure(array, options.rounds).values()), "|", flush=True)


if __name__ == "__main__":
    main()
