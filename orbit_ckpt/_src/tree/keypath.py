"""Key paths: the place of a leaf in a tree, and the names derived from it.

A `KeyPath` is a tuple of keys: JAX's in a flattened tree, this module's in a tree read from
metadata. Both have the same kinds and attributes, and reading needs no JAX. A checkpoint identifies
leaves by the *names* of their keys: `{'0': x}`, `{0: x}` and `[x]` all store one leaf called `0`,
as in Orbax.
"""

from __future__ import annotations

import ast
import sys
from enum import StrEnum
from typing import Any, cast

from msgspec import Struct
from typing_extensions import override

KeyPath = tuple[object, ...]
NamePath = tuple[str, ...]


class KeyKind(StrEnum):
    """The original kind of a key, where its name alone is ambiguous.

    Attributes:
        LITERAL: A dict key whose `str` is a Python literal: int, tuple, bool, None, float, bytes.
        ATTRIBUTE: A field of a namedtuple, dataclass or other node with named children.
        FLAT: A child of a node registered without keys.
    """

    LITERAL = "literal"
    ATTRIBUTE = "attr"
    FLAT = "flat"


class SequenceKey(Struct, frozen=True, gc=False):
    """A position in a list or tuple."""

    idx: int

    @override
    def __str__(self) -> str:
        return f"[{self.idx!r}]"


class DictKey(Struct, frozen=True, gc=False):
    """A key of a dict."""

    key: object

    @override
    def __str__(self) -> str:
        return f"[{self.key!r}]"


class GetAttrKey(Struct, frozen=True, gc=False):
    """A field of a namedtuple, dataclass or other node with named children."""

    name: str

    @override
    def __str__(self) -> str:
        return f".{self.name}"


class FlattenedIndexKey(Struct, frozen=True, gc=False):
    """A child of a node registered without keys."""

    key: int

    @override
    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


_ATTRIBUTES = {SequenceKey: "idx", DictKey: "key", GetAttrKey: "name", FlattenedIndexKey: "key"}


class _KeyClasses(dict[type, type | None]):
    """This module's class for each key class, including JAX's; None for other classes."""

    def __missing__(self, kind: type) -> type | None:
        loaded = sys.modules.get("jax.tree_util")  # JAX's keys exist only once it is loaded
        named = (own for own in _ATTRIBUTES if getattr(loaded, own.__name__, None) is kind)
        self[kind] = own = next(named, None)
        return own


_classes = _KeyClasses({kind: kind for kind in _ATTRIBUTES})


def key_class(key: object) -> type | None:
    """Return this module's class for a key, also for JAX's keys; None for anything else."""
    return _classes[type(key)]


def key_value(key: object) -> object:
    """Return the value of a key: an index, a dict key or an attribute's name."""
    kind = _classes[type(key)]
    return key if kind is None else getattr(key, _ATTRIBUTES[kind])


def key_name(key: object) -> str:
    """Return the name under which a key is stored: the text of its value."""
    return str(key_value(key))


def is_sequence_key(key: object) -> bool:
    """Return whether Orbax's metadata records the key as a position rather than a name."""
    kind = _classes[type(key)]
    return kind is SequenceKey or kind is FlattenedIndexKey


def name_path(path: KeyPath) -> NamePath:
    """Return the names of a path's keys."""
    return tuple(map(key_name, path))


def storage_name(names: NamePath) -> str:
    """Return the parameter name of a leaf: its key names joined by dots, not escaped.

    Not injective (`{'a.b': 1}` and `{'a': {'b': 1}}`); see `find_name_collisions`.
    """
    return ".".join(names)


def format_path(path: KeyPath | NamePath) -> str:
    """Return the name of a leaf for users: its keys joined by slashes.

    `<root>` for a bare leaf.
    """
    if not path:
        return "<root>"
    return "/".join(key if isinstance(key, str) else key_name(key) for key in path)


def key_kind(key: object) -> KeyKind | None:
    """Return the kind of a key, None if Orbax's own record of it loses nothing.

    Dict keys that are neither strings nor literals (an enum member, say) also give None: they
    are restored by name.
    """
    value, kind = key_value(key), _classes[type(key)]
    if kind is SequenceKey or (kind is DictKey and type(value) is str):
        return None
    if kind is GetAttrKey:
        return KeyKind.ATTRIBUTE
    if kind is FlattenedIndexKey:
        return KeyKind.FLAT
    if type(value) is str:
        return None
    return KeyKind.LITERAL if _is_literal(value) else None


def make_key(name: str, *, is_sequence: bool, kind: KeyKind | None = None) -> object:
    """Make the key that `key_name`, `is_sequence_key` and `key_kind` describe.

    Raises:
        ValueError: `name` is not an index, or not a literal, although it should be one.
    """
    match kind:
        case KeyKind.LITERAL:
            return DictKey(_parse_literal(name))
        case KeyKind.ATTRIBUTE:
            return GetAttrKey(name)
        case KeyKind.FLAT:
            return FlattenedIndexKey(int(name))
        case None:
            return SequenceKey(int(name)) if is_sequence else DictKey(name)


def find_name_collisions(names: list[NamePath]) -> list[tuple[int, int]]:
    """Return pairs of positions whose leaves would share one storage name."""
    first: dict[str, int] = {}
    collisions: list[tuple[int, int]] = []
    for position, path in enumerate(names):
        earlier = first.setdefault(storage_name(path), position)
        if earlier != position:
            collisions.append((earlier, position))
    return collisions


def _is_literal(value: object) -> bool:
    text = str(value)
    try:
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return type(parsed) is type(value) and bool(parsed == value)


def _parse_literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r} is not a Python literal") from error


class KeysByName(dict[str, object]):
    """Keys of paths by name, all of one type; most occur many times."""

    def __init__(self, *, is_sequence: bool) -> None:
        super().__init__()
        self._is_sequence = is_sequence

    def __missing__(self, name: str) -> object:
        try:
            key = make_key(name, is_sequence=self._is_sequence)
        except ValueError as error:
            raise ValueError(f"{name!r} is not a position") from error
        if key_name(key) != name:
            raise ValueError(f"{name!r} is not how a position is written")
        self[name] = key
        return key


def jax_path(path: KeyPath) -> KeyPath:
    """Return a path with JAX's keys, for code outside this package; imports JAX."""
    from jax import tree_util  # noqa: PLC0415 - nothing else here needs it

    def convert(key: object) -> object:
        kind = type(key)
        if kind not in _ATTRIBUTES:
            return key
        value = key_value(key)
        if value is None:  # DictKey(None) is a TypeError before JAX 0.10.1; flattening makes one
            pairs = cast(Any, tree_util).tree_leaves_with_path({None: 0})
            return pairs[0][0][0]
        return getattr(tree_util, kind.__name__)(value)

    return tuple(map(convert, path))
