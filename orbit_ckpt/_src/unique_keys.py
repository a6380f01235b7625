"""JSON objects that have a key twice.

Parsers keep one of the values, most of them the last, and do not say so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from orbit_ckpt._src.guards import is_list

_OF_USERS = frozenset({"custom_metadata"})
"""Keys whose values may repeat keys: Python encodes `{1: "a", "1": "b"}` so."""


class RepeatedKeyError(ValueError):
    """An object has a key twice."""


def parse_unique(text: str | bytes) -> Any:  # any JSON value
    """Parse a JSON document.

    Raises:
        RepeatedKeyError: An object has a key twice.
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    document = json.loads(text)
    check_unique(text)
    return document


def check_unique(text: str | bytes) -> None:
    """Check that no object of a JSON document has a key twice.

    Raises:
        RepeatedKeyError: One does, outside of values of users.
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        json.loads(text, object_pairs_hook=_check)
    except RepeatedKeyError:
        # where it is matters only now
        key = _find_repeated(json.loads(text, object_pairs_hook=_Pairs))
        if key is not None:
            shown = key if len(key) <= 100 else f"{key[:100]}..."
            raise RepeatedKeyError(f"an object has the key {shown!r} twice") from None


class _Pairs(tuple[tuple[str, object], ...]):
    """The pairs of an object."""

    __slots__ = ()


def _check(pairs: Sequence[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise RepeatedKeyError


def _find_repeated(node: object) -> str | None:
    """Return the first key that an object has twice, None if none does."""
    children: Sequence[object] = ()
    if isinstance(node, _Pairs):
        seen: set[str] = set()
        for key, _ in node:
            if key in seen:
                return key
            seen.add(key)
        children = [child for key, child in node if key not in _OF_USERS]
    elif is_list(node):
        children = node
    found = (_find_repeated(child) for child in children)
    return next((key for key in found if key is not None), None)
