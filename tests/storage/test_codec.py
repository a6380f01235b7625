"""Chunks come back as they were, and every damage to their stored form is noticed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.storage.checksums import join_checksums
from orbit_ckpt._src.storage.codec import decode_chunk, decode_stream, encode_chunk
from orbit_ckpt._src.storage.zarr import ZarrArray, describe_array

NOISE = np.random.default_rng(0).bytes(3_000_000)
TEXT = b"training run " * 200_000
DATA = {"noise": NOISE, "text": TEXT, "both": TEXT[:1_500_000] + NOISE[:1_500_000]}


def layout_of(data: bytes, *, compress: bool, zarr_format: int = 3) -> ZarrArray:
    shape = (len(data),)
    dtype = np.dtype(np.uint8)
    return describe_array(shape, shape, dtype, zarr_format=zarr_format, compress=compress)[0]


def encode(layout: ZarrArray, data: bytes) -> bytes:
    pieces = [memoryview(data)]
    return b"".join(map(bytes, encode_chunk(layout, pieces, len(data))))


def decode_at_once(layout: ZarrArray, encoded: bytes, nbytes: int) -> bytes | str:
    chunk = bytearray(nbytes)
    return decode_chunk(layout, memoryview(encoded), memoryview(chunk)) or bytes(chunk)


def decode_in_pieces(
    layout: ZarrArray, encoded: bytes, nbytes: int, *, claimed: int | None = None
) -> bytes | str:
    chunk = bytearray(nbytes)
    rest = memoryview(encoded)

    def read(size: int) -> bytes:
        nonlocal rest
        data, rest = bytes(rest[:size]), rest[size:]
        return data

    claimed = len(encoded) if claimed is None else claimed
    return decode_stream(layout, read, claimed, memoryview(chunk)) or bytes(chunk)


DECODERS = [decode_at_once, decode_in_pieces]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_compressed_data_round_trips(
    decode: Callable[..., bytes | str], data: bytes, zarr_format: int
) -> None:
    layout = layout_of(data, compress=True, zarr_format=zarr_format)
    encoded = encode(layout, data)
    assert layout.compression == "zstd"
    assert len(encoded) < 1.001 * len(data)
    assert decode(layout, encoded, len(data)) == data


def test_plain_data_is_stored_as_it_is_with_its_checksum() -> None:
    layout = layout_of(NOISE, compress=False)
    encoded = encode(layout, NOISE)
    assert encoded == NOISE + crc32c(NOISE).to_bytes(4, "little")
    assert decode_at_once(layout, encoded, len(NOISE)) == NOISE


@pytest.mark.parametrize("decode", DECODERS)
def test_frames_of_other_writers_are_read(decode: Callable[..., bytes | str]) -> None:
    layout = layout_of(TEXT, compress=True, zarr_format=2)
    half = len(TEXT) // 2
    compress = zstandard.ZstdCompressor(level=19, write_content_size=False).compress
    assert decode(layout, compress(TEXT[:half]) + compress(TEXT[half:]), len(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("decode", "compress"),
    [(decode_at_once, True), (decode_at_once, False), (decode_in_pieces, True)],
)
def test_every_flipped_bit_is_noticed(decode: Callable[..., bytes | str], compress: bool) -> None:
    data = TEXT[:20_000]
    layout = layout_of(data, compress=compress)
    encoded = encode(layout, data)
    for position in range(0, len(encoded), 1 + len(encoded) // 500):
        damaged = bytearray(encoded)
        damaged[position] ^= 1 << position % 8
        assert decode(layout, bytes(damaged), len(data)) == "its checksum does not match"


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_data_of_another_length_is_noticed(
    decode: Callable[..., bytes | str], zarr_format: int
) -> None:
    layout = layout_of(TEXT, compress=True, zarr_format=zarr_format)
    for other in (TEXT[:-1], TEXT + b"x", b"x"):
        encoded = encode(layout, other)
        found = decode(layout, encoded, len(TEXT))
        assert found == f"it does not decompress to {len(TEXT)} bytes"


def test_a_file_that_ends_early_is_noticed_before_its_checksum() -> None:
    layout = layout_of(NOISE, compress=True)
    encoded = encode(layout, NOISE)
    for kept in (0, 1, 1000, len(encoded) - 4, len(encoded) - 1):
        found = decode_in_pieces(layout, encoded[:kept], len(NOISE), claimed=len(encoded))
        assert found == f"it does not have {len(encoded)} bytes"


@given(
    st.binary(max_size=50),
    st.binary(max_size=50) | st.binary(min_size=1, max_size=1).map(lambda byte: byte * 300_001),
)
def test_checksums_of_two_parts_give_that_of_both(first: bytes, second: bytes) -> None:
    joined = join_checksums(crc32c(first), crc32c(second), len(second))
    assert joined == crc32c(first + second)


@pytest.mark.parametrize("decode", DECODERS)
def test_damage_is_noticed_without_a_checksum_of_zarr(decode: Callable[..., bytes | str]) -> None:
    data = np.random.default_rng(0).normal(0, 9, 60_000).astype(np.int8).tobytes()
    layout = layout_of(data, compress=True, zarr_format=2)
    encoded = encode(layout, data)
    assert len(encoded) < 0.8 * len(data)
    for position in range(0, len(encoded), 997):
        damaged = bytearray(encoded)
        damaged[position] ^= 1 << position % 8
        assert isinstance(decode(layout, bytes(damaged), len(data)), str)
    for missing in range(1, 9):
        assert isinstance(decode(layout, encoded[:-missing], len(data)), str)
