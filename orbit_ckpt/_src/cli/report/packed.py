"""Numbers of many leaves and steps as the page holds them: little-endian, in base64."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

import numpy as np

from orbit_ckpt._src.arrays.histogram import BINS, Histogram
from orbit_ckpt._src.arrays.statistics import ArrayStatistics
from orbit_ckpt._src.cli.report.measure import MeasuredStep
from orbit_ckpt._src.tree.keypath import NamePath

MATRICES = ("change", "l2", "min", "max", "mean")
"""Numbers that the page has of every leaf in every step that was read."""

_EXACT_NUMBERS = 200_000
"""Matrices of more numbers have float32, which halves a page of thousands of leaves and steps."""

_HISTOGRAM_BYTES = 6 << 20
"""Limit of all histograms of a page; those of the newest steps come first."""


def pack_matrices(
    steps: Sequence[MeasuredStep], names: Sequence[NamePath]
) -> tuple[str, dict[str, str]]:
    """Return the dtype of the matrices, and each by name: a row per step, NaN where unknown."""
    is_small = len(steps) * len(names) <= _EXACT_NUMBERS
    dtype = np.dtype("<f8" if is_small else "<f4")
    matrices = np.full((len(MATRICES), len(steps), len(names)), np.nan)
    places = {name: i for i, name in enumerate(names)}
    for row, step in enumerate(steps):
        for keys, found in step.found.items():
            one = found.statistics
            if one is not None:
                numbers = (found.change, one.l2, one.min, one.max, one.mean)
                for matrix, number in zip(matrices, numbers, strict=True):
                    if number is not None:
                        matrix[row, places[keys]] = number
    with np.errstate(over="ignore"):
        packed = matrices.astype(dtype)
    return dtype.str[1:], {
        name: _encode(matrix) for name, matrix in zip(MATRICES, packed, strict=True)
    }


def pack_histograms(
    steps: Sequence[MeasuredStep], names: Sequence[NamePath]
) -> dict[int, tuple[str, str]]:
    """Return by index of the step the edges and the counts of the histograms of all leaves.

    Edges are float64: lower edge of the first bin, width of a bin, and number of zeros; the width
    is 0 if all values are equal. Counts are float32, 64 for each leaf.
    """
    most = _HISTOGRAM_BYTES // max(1, len(names) * (BINS * 4 + 24))
    chosen = range(max(0, len(steps) - max(1, most)), len(steps))
    return {i: _pack_step(steps[i], names) for i in chosen}


def _pack_step(step: MeasuredStep, names: Sequence[NamePath]) -> tuple[str, str]:
    edges = np.zeros((len(names), 3), "<f8")
    counts = np.zeros((len(names), BINS), "<f4")
    for row, keys in enumerate(names):
        found = _histogram(step, keys)
        if found is not None:
            width = 0.0 if len(found.counts) == 1 and found.exponent < -1022 else found.width
            edges[row] = found.low, width, found.zeros
            counts[row, : len(found.counts)] = found.counts
    return _encode(edges), _encode(counts)


def _histogram(step: MeasuredStep, keys: NamePath) -> Histogram | None:
    measured = step.found.get(keys)
    return measured.statistics.histogram if measured and measured.statistics else None


def _encode(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def row_of(found: ArrayStatistics | None) -> list[object]:
    """Return the statistics of a leaf as cells of its row: exact, unlike the matrices."""
    if found is None:
        return [None] * 7
    zeros = found.histogram.zeros if found.histogram else None
    numbers = [_exact(n) for n in (found.min, found.max, found.mean, found.l2)]
    return [*numbers, found.nans, found.infs, zeros]


def _exact(number: float | None) -> object:
    """Return a number that a browser reads exactly: beyond 2**53 an integer is a text."""
    is_large = isinstance(number, int) and abs(number) > 2**53
    return str(number) if is_large or (number is not None and not math.isfinite(number)) else number
