"""Type guards: checks of containers that leave their elements as `object`, not unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from typing_extensions import TypeIs


def is_mapping(value: object) -> TypeIs[Mapping[object, object]]:
    """Return whether a value is a mapping."""
    return isinstance(value, Mapping)


def is_dict(value: object) -> TypeIs[dict[object, object]]:
    """Return whether a value is a dict."""
    return isinstance(value, dict)


def is_json_object(value: object) -> TypeIs[dict[str, object]]:
    """Return whether a part of a decoded JSON document is an object, whose keys are strings."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeIs[list[object]]:
    """Return whether a value is a list."""
    return isinstance(value, list)


def is_tuple(value: object) -> TypeIs[tuple[object, ...]]:
    """Return whether a value is a tuple."""
    return isinstance(value, tuple)


def is_list_or_tuple(value: object) -> TypeIs[list[object] | tuple[object, ...]]:
    """Return whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_plural(value: object) -> TypeIs[Collection[object]]:
    """Return whether a value is a collection; text is a single value."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes)


def is_sequence(value: object) -> TypeIs[Sequence[object]]:
    """Return whether a value is a sequence other than text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
