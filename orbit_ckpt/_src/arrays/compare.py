"""Compare the values of two arrays of equal shape block by block; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, dates_fit, number_kind, python_scalar
from orbit_ckpt._src.arrays.moments import Moments, measure_difference
from orbit_ckpt._src.arrays.slices import Shape

_BLOCK_ELEMENTS = 1 << 15
"""Elements compared at once: the intermediate results fit the processor's cache."""

_SHOWN = 40
"""Maximum characters of a string to show."""

_EXACT_FLOAT = 2.0**53
"""float64 rounds integers from here on."""

Number = int | float


class Arithmetic(StrEnum):
    """The domain in which values are compared.

    Attributes:
        INTEGER: Exact for all widths, and for bool.
        FLOAT: float64, to which all narrower floats convert exactly. An integer that float64 rounds
            equals a float only if both are exactly equal.
        COMPLEX: complex128; the difference is an absolute value.
        DATE: Exact, in the finer unit.
        BITS: Rows of bits, equal or not; for keys.
    """

    INTEGER = "integers"
    FLOAT = "float64"
    COMPLEX = "complex128"
    DATE = "dates"
    BITS = "bits"


class Comparison(Struct, frozen=True):
    """How values are compared; of numbers only.

    Attributes:
        rtol: Elements are equal if `|a - b| <= atol + rtol * |b|`.
        atol: See `rtol`.
        measures: Whether to compute `ValueChange.moments`.
    """

    rtol: float = 0.0
    atol: float = 0.0
    measures: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether there is no tolerance."""
        return not (self.rtol or self.atol)


EXACT = Comparison()


@dataclass(frozen=True, slots=True)
class ValueChange:
    """The difference between the values of two arrays of equal shape.

    NaN equals NaN, and -0.0 equals 0.0.

    Attributes:
        size: Elements compared.
        differing: Elements that differ.
        nan_mismatches: Differing elements that are NaN in one array only (for dates: NaT, or out of
            range in the other's unit).
        max_abs_difference: Largest `|a - b|` of the remaining ones. None if there are none, or if
            subtraction has no meaning, as for keys.
        index: Position of that element, else of the first that differs; the first of several.
        a: The element of the first array there, None for keys.
        b: The element of the second.
        has_same_bits: Whether all bits are equal.
        compared_as: The `Arithmetic` that values were converted to, if their dtypes differ.
        within: Elements that differ, but not by more than the tolerance, and so count as equal.
        moments: How far both are apart as vectors, if it was asked for.
    """

    size: int
    differing: int = 0
    nan_mismatches: int = 0
    max_abs_difference: Number | None = None
    index: Shape | None = None
    a: object = None
    b: object = None
    has_same_bits: bool = True
    compared_as: str | None = None
    within: int = 0
    moments: Moments | None = None

    def merge(self, other: ValueChange) -> ValueChange:
        """Combine the results of two parts of an array."""
        shown = max(self, other, key=_rank)
        return replace(
            shown,
            size=self.size + other.size,
            differing=self.differing + other.differing,
            nan_mismatches=self.nan_mismatches + other.nan_mismatches,
            has_same_bits=self.has_same_bits and other.has_same_bits,
            compared_as=self.compared_as or other.compared_as,
            within=self.within + other.within,
            moments=self.moments.merge(other.moments)
            if self.moments and other.moments
            else self.moments or other.moments,
        )

    def describe(self) -> str:
        """Return a one-line summary."""
        if not self.differing:
            text = f"all {self.size} equal"
            if self.within:
                text = f"{self.within} of {self.size} differ within the tolerance"
        else:
            text = f"{self.differing} of {self.size} differ"
            distance = self.max_abs_difference
            text += ", first" if distance is None else f", max |a - b| {format_value(distance)}"
            text += f" at {list(self.index or ())}"
            if self.a is not None:
                text += f" ({format_value(self.a)} -> {format_value(self.b)})"
            if self.nan_mismatches:
                text += f", {self.nan_mismatches} NaN in one only"
        return text + (f", as {self.compared_as}" if self.compared_as else "")


def format_value(value: object) -> str:
    """Format a value to fit on a line."""
    if isinstance(value, float | complex):
        return f"{value:.8g}"
    if isinstance(value, str | bytes):
        cut = f"... ({len(value)} long)" if len(value) > _SHOWN else ""
        return f"{value[:_SHOWN]!r}{cut}"
    return str(value)


def choose_arithmetic(a: DType, b: DType) -> Arithmetic | None:
    """Return the domain in which two dtypes are compared, None if they cannot be."""
    if a.kind in "mM" or b.kind in "mM":
        return Arithmetic.DATE if a.kind == b.kind and _have_common_unit(a, b) else None
    kinds = {number_kind(a), number_kind(b)}
    if "complex" in kinds:
        return Arithmetic.COMPLEX
    return Arithmetic.FLOAT if "float" in kinds else Arithmetic.INTEGER


def _have_common_unit(a: DType, b: DType) -> bool:
    """Return whether one unit can express both; a year has no fixed number of days."""
    try:
        np.promote_types(a, b)
    except TypeError:
        return False
    return True


def compare_values(
    a: HostArray,
    b: HostArray,
    arithmetic: Arithmetic,
    *,
    start: Shape | None = None,
    how: Comparison = EXACT,
) -> ValueChange:
    """Compare two arrays, or the same part of both, element by element.

    Args:
        a: The first.
        b: The second, of the same shape.
        arithmetic: The domain; with `BITS`, rows of the last dimension are compared.
        start: Index of the first element in the whole arrays.
        how: Tolerance, and what else to compute.
    """
    shape = a.shape[:-1] if arithmetic is Arithmetic.BITS else a.shape
    row = a.shape[len(shape) :]
    x, y = (np.ascontiguousarray(v).reshape(-1, *row) for v in (a, b))
    change = ValueChange(0, compared_as=None if a.dtype == b.dtype else arithmetic.value)
    with np.errstate(all="ignore"):
        for first in range(0, len(x), _BLOCK_ELEMENTS):
            block = slice(first, first + _BLOCK_ELEMENTS)
            place = _Place(first, shape, start)
            found = _compare_block(x[block], y[block], arithmetic, place, how)
            if how.measures and arithmetic in _NUMBERS:
                found = replace(found, moments=measure_difference(x[block], y[block]))
            change = change.merge(found)
    return change


_NUMBERS = frozenset({Arithmetic.INTEGER, Arithmetic.FLOAT, Arithmetic.COMPLEX})


class _Place(Struct, frozen=True):
    """The position of a block of elements.

    Attributes:
        first: Flat index of its first element in its array.
        shape: Shape of the array.
        start: Index of the array's first element in a larger one.
    """

    first: int
    shape: Shape
    start: Shape | None

    def index(self, position: int) -> Shape:
        inner = np.unravel_index(self.first + position, self.shape)
        return tuple(
            int(i) + offset
            for i, offset in zip(inner, self.start or (0,) * len(inner), strict=True)
        )


class _Found(Struct, frozen=True):
    """The elements that differ.

    Attributes:
        differs: For every element, whether it differs.
        distance: The absolute differences, 0 for equal elements; None if subtraction has no
            meaning.
        mismatched: Whether exactly one of the two is NaN, which makes the distance meaningless.
            None without NaN.
    """

    differs: HostArray
    distance: HostArray | None = None
    mismatched: HostArray | None = None

    def farthest(self) -> tuple[int, Number | None]:
        """Return an element that differs and its distance: the first of the farthest."""
        distance = self.distance
        if distance is not None and self.mismatched is not None:
            comparable = np.flatnonzero(self.differs & ~self.mismatched)
            if comparable.size:
                position = comparable[np.argmax(distance[comparable])]
                return int(position), _number(distance, int(position))
        elif distance is not None:
            position = int(np.argmax(distance))
            return position, _number(distance, position)
        return int(np.argmax(self.differs)), None


def _compare_block(
    x: HostArray, y: HostArray, arithmetic: Arithmetic, place: _Place, how: Comparison
) -> ValueChange:
    size = len(x)
    positions: HostArray | None = None
    if x.dtype == y.dtype:
        unequal = _unequal_bits(x, y)
        if unequal is None:
            return ValueChange(size)
        if np.count_nonzero(unequal) < size // 2:
            positions = np.flatnonzero(unequal)
            x, y = x[positions], y[positions]
    found, within = _COMPARE[arithmetic](x, y), 0
    if not how.is_exact and arithmetic in _NUMBERS:
        found, within = _tolerate(found, y, how)
    differing = int(np.count_nonzero(found.differs))
    if not differing:
        return ValueChange(size, has_same_bits=False, within=within)
    mismatched = found.mismatched
    position, distance = found.farthest()
    return ValueChange(
        size,
        differing,
        0 if mismatched is None else int(np.count_nonzero(mismatched)),
        distance,
        place.index(position if positions is None else int(positions[position])),
        _plain(x[position], arithmetic),
        _plain(y[position], arithmetic),
        has_same_bits=False,
        within=within,
    )


def _tolerate(found: _Found, y: HostArray, how: Comparison) -> tuple[_Found, int]:
    """Count elements within the tolerance as equal; return their number, too."""
    if found.distance is None:
        return found, 0
    kind = np.complex128 if number_kind(y.dtype) == "complex" else np.float64
    size = np.abs(y.astype(kind))
    close = found.differs & np.isfinite(size)
    close &= found.distance.astype(np.float64) <= how.atol + how.rtol * size
    if found.mismatched is not None:
        close &= ~found.mismatched
    distance = np.where(close, 0, found.distance)
    differs = found.differs & ~close
    return _Found(differs, distance, found.mismatched), int(np.count_nonzero(close))


def _unequal_bits(x: HostArray, y: HostArray) -> HostArray | None:
    """Return a mask of the elements, or rows, with different bits; None if all are equal."""
    width = next(n for n in (8, 4, 2, 1) if x.nbytes % n == 0)
    a, b = (v.reshape(-1).view(f"u{width}") for v in (x, y))
    if np.array_equal(a, b):
        return None
    itemsize = x.nbytes // len(x)
    width = next(n for n in (8, 4, 2, 1) if itemsize % n == 0)
    differs = x.reshape(-1).view(f"u{width}") != y.reshape(-1).view(f"u{width}")
    return differs.reshape(len(x), -1).any(1) if itemsize > width else differs


def _compare_bits(x: HostArray, y: HostArray) -> _Found:
    return _Found((x != y).any(axis=-1))


def _compare_integers(x: HostArray, y: HostArray) -> _Found:
    if not any(v.dtype == np.uint64 for v in (x, y)):
        a, b = x.astype(np.int64), y.astype(np.int64)
        distance = np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)
    elif all(v.dtype.kind in "ub" for v in (x, y)):
        a, b = x.astype(np.uint64), y.astype(np.uint64)
        distance = np.maximum(a, b) - np.minimum(a, b)
    else:
        distance = np.abs(x.astype(object) - y.astype(object))
    return _Found(distance != 0, distance)


def _compare_floats(x: HostArray, y: HostArray) -> _Found:
    a, b = x.astype(np.float64), y.astype(np.float64)
    distance = np.abs(a - b)
    if not _is_integer(x) and not _is_integer(y) and not np.isnan(np.max(distance)):
        return _Found(distance != 0, distance)
    differs, distance = _apart(x, y)
    a_nan, b_nan = np.isnan(a), np.isnan(b)
    return _Found(differs & ~(a_nan & b_nan), distance, a_nan ^ b_nan)


def _compare_complex(x: HostArray, y: HostArray) -> _Found:
    (ar, ai), (br, bi) = _parts(x), _parts(y)
    a_nan, b_nan = _is_nan(ar) | _is_nan(ai), _is_nan(br) | _is_nan(bi)
    (real, width), (imaginary, height) = _apart(ar, br), _apart(ai, bi)
    differs = (real | imaginary) & ~(a_nan & b_nan)
    return _Found(differs, np.hypot(width, height), a_nan ^ b_nan)


def _compare_dates(x: HostArray, y: HostArray) -> _Found:
    finer = np.promote_types(x.dtype, y.dtype)
    a_fits, b_fits = dates_fit(x, finer), dates_fit(y, finer)
    lost = ~(a_fits & b_fits)
    a = np.where(a_fits, x, np.array("NaT", x.dtype)).astype(finer)
    b = np.where(b_fits, y, np.array("NaT", y.dtype)).astype(finer)
    a_nat, b_nat = np.isnat(a), np.isnat(b)
    found = _compare_integers(a.view(np.int64), b.view(np.int64))
    return _Found((found.differs & ~(a_nat & b_nat)) | lost, found.distance, lost | a_nat ^ b_nat)


_COMPARE: dict[Arithmetic, Callable[[HostArray, HostArray], _Found]] = {
    Arithmetic.INTEGER: _compare_integers,
    Arithmetic.FLOAT: _compare_floats,
    Arithmetic.COMPLEX: _compare_complex,
    Arithmetic.DATE: _compare_dates,
    Arithmetic.BITS: _compare_bits,
}


def _apart(x: HostArray, y: HostArray) -> tuple[HostArray, HostArray]:
    """Compare real numbers, NaN never equal; return the mask of differences and the distances."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    differs = a != b
    distance = np.where(differs, np.abs(a - b), 0.0)
    if _is_integer(x) or _is_integer(y):
        doubtful = np.flatnonzero(~differs & (np.abs(a) >= _EXACT_FLOAT))
        for i in doubtful:
            exact = abs(_to_int(x[i]) - _to_int(y[i]))
            differs[i], distance[i] = exact != 0, exact
    return differs, distance


def _parts(x: HostArray) -> tuple[HostArray, HostArray]:
    if number_kind(x.dtype) != "complex":
        return x, np.zeros(x.shape)
    values = x.astype(np.complex128)
    return values.real, values.imag


def _is_integer(x: HostArray) -> bool:
    return number_kind(x.dtype) in ("int", "bool")


def _is_nan(x: HostArray) -> HostArray:
    return np.isnan(x.astype(np.float64))


def _number(values: HostArray, position: int) -> Number:
    return values[position : position + 1].tolist()[0]


def _to_int(x: object) -> int:
    return int(cast(float, x))


def _plain(x: object, arithmetic: Arithmetic) -> object:
    """Convert an element to a Python number; a date to numpy's."""
    match arithmetic:
        case Arithmetic.BITS:
            return None
        case Arithmetic.DATE:
            return x
        case Arithmetic.INTEGER | Arithmetic.FLOAT | Arithmetic.COMPLEX:
            return python_scalar(np.asarray(x))


def _rank(change: ValueChange) -> tuple[bool, bool, Number, tuple[int, ...]]:
    """Return the sort key of a part by the element that it shows; the farthest comes first."""
    index = change.index
    return (
        index is not None,
        change.max_abs_difference is not None,
        change.max_abs_difference or 0,
        tuple(-i for i in index or ()),
    )
