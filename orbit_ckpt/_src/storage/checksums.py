"""The crc32c of data whose parts have been checksummed out of order."""

from __future__ import annotations

import functools

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, its highest power in the lowest bit, as all polynomials here."""

_ONE, _X = 1 << 31, 1 << 30
_ORDER_BITS = 31
"""x to the power of 2**31 is x again, because the polynomial's other factor has degree 31."""


def join_checksums(first: int, second: int, second_nbytes: int) -> int:
    """Return the crc32c of data in two parts from the crc32c of each.

    Args:
        first: That of the first part.
        second: That of the second.
        second_nbytes: Size of the second.
    """
    shift, bit = _ONE, 3  # a byte is eight bits
    while second_nbytes:
        if second_nbytes & 1:
            shift = _multiply(_square(bit % _ORDER_BITS), shift)
        second_nbytes >>= 1
        bit += 1
    return _multiply(shift, first) ^ second


@functools.cache
def _square(count: int) -> int:
    """Return x squared a number of times."""
    if count == 0:
        return _X
    root = _square(count - 1)
    return _multiply(root, root)


def _multiply(a: int, b: int) -> int:
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
