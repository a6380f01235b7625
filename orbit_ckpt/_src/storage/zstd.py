"""Choose how hard zstd tries: what a level saves depends on the data."""

from __future__ import annotations

import threading
from typing import Any

import zstandard
from zstandard import ZstdCompressionParameters, ZstdCompressor

_ENTROPY: dict[str, Any] = {
    "strategy": zstandard.STRATEGY_FAST,
    "window_log": 17,
    "hash_log": 6,
    "chain_log": 6,
    "search_log": 1,
    "min_match": 7,
    "target_length": 0,
}
"""Entropy coding, nearly without a search for repetitions. On the bytes of numbers this is three
times as fast as level 1 and saves more: their short repetitions are chance, and describing one
takes more than the bytes."""

_LEVEL, _FAST_LEVEL = 1, -1
"""Unlike level 1, level -1 only removes repetitions."""

_MIN_SAVING, _MIN_LEVEL_SAVING = 1 / 10, 1 / 8


def choose_compressor(sample: bytes, *, checksum: bool) -> ZstdCompressor:
    """Return the compressor for data like a sample; noise is hardly compressed, but fast.

    Args:
        sample: Some of the data.
        checksum: Whether the result is to end in a checksum, which every decompressor compares.
    """
    entropy = _entropy_coder(checksum=checksum)
    level = ZstdCompressor(level=_LEVEL, write_checksum=checksum)
    compressor, size = _searching(sample, level, entropy)
    if size <= (1 - _MIN_SAVING) * len(sample):
        return compressor
    return ZstdCompressor(level=_FAST_LEVEL, write_checksum=checksum)


class NumberCompressors(threading.local):
    """The compressors of a thread for bytes of numbers, whose memory takes long to prepare."""

    def __init__(self) -> None:
        self._entropy = _entropy_coder(checksum=False)
        self._level = ZstdCompressor(level=_LEVEL)

    def choose(self, sample: bytes) -> tuple[ZstdCompressor, int]:
        """Return the compressor for bytes like a sample, and what it makes of the sample."""
        return _searching(sample, self._level, self._entropy)


def _entropy_coder(*, checksum: bool) -> ZstdCompressor:
    parameters = ZstdCompressionParameters(**_ENTROPY, write_checksum=checksum)
    return ZstdCompressor(compression_params=parameters)


def _searching(
    sample: bytes, level: ZstdCompressor, entropy: ZstdCompressor
) -> tuple[ZstdCompressor, int]:
    """Return level 1 if the data repeats itself, else the entropy coder; and the sample's size."""
    size, level_size = (len(compressor.compress(sample)) for compressor in (entropy, level))
    if level_size <= (1 - _MIN_LEVEL_SAVING) * size:
        return level, level_size
    return entropy, size
