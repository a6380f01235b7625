"""What the JSON documents of a checkpoint hold, with decoders that say where one is wrong.

`TreeDocument`, `ArrayDocument` and `StepDocument` are Orbax's; unknown fields are ignored.
`TreeDetails` is ours: what Orbax's documents lose about keys and leaf types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

from orbit_ckpt.arrays.dtypes import parse_dtype
from orbit_ckpt.arrays.slices import Shape
from orbit_ckpt.errors import FormatError
from orbit_ckpt.tree.keypath import (
    KeyKind,
    KeyPath,
    NamePath,
    is_sequence_key,
    key_name,
    make_key,
    name_path,
    storage_name,
)

T = TypeVar("T")
Document = Mapping[str, object]

EMPTY_TYPES: Mapping[str, object] = {"None": None, "Dict": {}, "List": [], "Tuple": ()}
"""Value types of empty containers and what they stand for, `NamedTuple` apart."""

DETAILS_VERSION = 1
"""Version of the form of `orbit_tree.json`."""

JAX_ARRAY = "jax.Array"
"""Value type of JAX arrays."""

RANDOM_KEY_IMPL = "random_key_impl"

_SEQUENCE, _DICT = 1, 2


class LeafRecord(NamedTuple):
    """One leaf of a tree as `_METADATA` records it.

    A tuple, because there are as many as leaves and tuples are made fastest.

    Attributes:
        path: Where it sits.
        names: The names of the path's keys.
        name: Storage name.
        typestr: Which type handler wrote it, or the kind of an empty container.
        is_empty: Whether it is an empty container, with nothing stored.
        write_shape: Shape of the part that one device wrote, for JAX arrays.
    """

    path: KeyPath
    names: NamePath
    name: str
    typestr: str
    is_empty: bool = False
    write_shape: Shape | None = None

    @classmethod
    def at(cls, path: KeyPath, typestr: str, *, is_empty: bool = False) -> LeafRecord:
        """Return the record of a leaf that is stored under the name of its path."""
        names = name_path(path)
        return cls(path, names, storage_name(names), typestr, is_empty)


@dataclass(frozen=True, slots=True)
class TreeDocument:
    """`_METADATA`: the leaves of a tree and how they are stored.

    Attributes:
        leaves: In the order of JAX's flattening.
        use_ocdbt: Whether arrays are in an OCDBT database, None if not recorded.
        use_zarr3: Whether arrays are zarr3, else zarr2.
        stores_fill_values: Whether chunks of zeros were written too, so that one that does not
            exist has been lost.
        custom_metadata: Any JSON value of the user's.
        rich_types: The text of Orbax's `value_metadata_tree`, None if not recorded.
    """

    leaves: Sequence[LeafRecord]
    use_ocdbt: bool | None = None
    use_zarr3: bool = False
    stores_fill_values: bool = True
    custom_metadata: object = None
    rich_types: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        document: dict[str, object] = {
            "tree_metadata": _encode_leaves(self.leaves),
            "use_ocdbt": self.use_ocdbt,
            "use_zarr3": self.use_zarr3,
            "store_array_data_equal_to_fill_value": self.stores_fill_values,
            "custom_metadata": self.custom_metadata,
        }
        if self.rich_types is not None:
            document["value_metadata_tree"] = self.rich_types
        return document

    @classmethod
    def from_json(cls, document: object, where: str) -> TreeDocument:
        """Decode the JSON form.

        Raises:
            FormatError: A field is missing or of a wrong type.
        """
        fields = expect_object(document, where)
        records = expect_object(fields.get("tree_metadata"), f"{where}: tree_metadata")
        use_ocdbt = fields.get("use_ocdbt")
        rich_types = fields.get("value_metadata_tree")
        return cls(
            leaves=_decode_leaves(records, f"{where}: tree_metadata"),
            use_ocdbt=None if use_ocdbt is None else expect(use_ocdbt, bool, f"{where}: use_ocdbt"),
            use_zarr3=expect(fields.get("use_zarr3", False), bool, f"{where}: use_zarr3"),
            stores_fill_values=expect(
                fields.get("store_array_data_equal_to_fill_value", False),
                bool,
                f"{where}: store_array_data_equal_to_fill_value",
            ),
            custom_metadata=fields.get("custom_metadata"),
            rich_types=None
            if rich_types is None
            else expect(rich_types, str, f"{where}: value_metadata_tree"),
        )


@dataclass(frozen=True, slots=True)
class LeafDetail:
    """What Orbax's documents lose about one leaf.

    Attributes:
        type: What the leaf was where its typestr stands for several: `bytes`, `numpy.bytes`,
            `numpy` (a numpy scalar or string), or the `module:qualname` of an empty namedtuple's
            class.
        dtype: Logical dtype where the stored one differs.
    """

    type: str | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class TreeDetails:
    """`orbit_tree.json`: what Orbax's documents lose about a tree; only what differs is listed.

    Attributes:
        key_kinds: Kinds of the keys of a leaf's path, by storage name.
        leaves: Details of leaves, by storage name.
    """

    key_kinds: Mapping[str, Sequence[KeyKind | None]] = field(
        default_factory=dict[str, "Sequence[KeyKind | None]"]
    )
    leaves: Mapping[str, LeafDetail] = field(default_factory=dict[str, LeafDetail])

    def __bool__(self) -> bool:
        return bool(self.key_kinds or self.leaves)

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "format_version": DETAILS_VERSION,
            "keys": {name: list(kinds) for name, kinds in self.key_kinds.items()},
            "leaves": {
                name: {k: v for k, v in (("type", d.type), ("dtype", d.dtype)) if v}
                for name, d in self.leaves.items()
            },
        }

    @classmethod
    def from_json(cls, document: object, where: str) -> TreeDetails:
        """Decode the JSON form.

        Raises:
            FormatError: A field is missing or of a wrong type, or the version is a later one.
        """
        fields = expect_object(document, where)
        version = expect(fields.get("format_version"), int, f"{where}: format_version")
        if version > DETAILS_VERSION:
            raise FormatError(
                f"{where}: format version {version}; this version of orbit_ckpt reads up to "
                f"{DETAILS_VERSION}. Install a newer one."
            )
        keys = cast(Mapping[str, list[str | None]], fields.get("keys", {}))
        leaves = cast(Mapping[str, dict[str, str]], fields.get("leaves", {}))
        try:
            return cls(
                {
                    name: [None if kind is None else KeyKind(kind) for kind in kinds]
                    for name, kinds in keys.items()
                },
                {name: _decode_detail(detail) for name, detail in leaves.items()},
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{where}: {type(error).__name__}: {error}") from error

    def apply(self, leaf: LeafRecord) -> LeafRecord:
        """Return the leaf with the keys it was saved with."""
        kinds = self.key_kinds.get(leaf.name)
        if kinds is None or len(kinds) != len(leaf.path):
            return leaf
        path = tuple(
            key if kind is None else make_key(name, is_sequence=is_sequence_key(key), kind=kind)
            for key, name, kind in zip(leaf.path, leaf.names, kinds, strict=True)
        )
        return leaf._replace(path=path)


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """One JAX array in `array_metadatas/process_<i>`.

    Attributes:
        name: Storage name.
        write_shape: Shape of the part that one device wrote.
        chunk_shape: Shape of its chunks.
        random_key_impl: PRNG implementation if the array holds the data of typed keys.
    """

    name: str
    write_shape: Shape
    chunk_shape: Shape
    random_key_impl: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        extra = {RANDOM_KEY_IMPL: self.random_key_impl} if self.random_key_impl else None
        return {
            "array_metadata": {
                "param_name": self.name,
                "write_shape": list(self.write_shape),
                "chunk_shape": list(self.chunk_shape),
                "ext_metadata": extra,
            }
        }

    @classmethod
    def from_json(cls, document: object, *where: str) -> ArrayRecord:
        """Decode the JSON form.

        Raises:
            FormatError: A field is missing or of a wrong type.
        """
        entry = expect_object(document, *where)
        fields = expect_object(entry.get("array_metadata"), *where, "array_metadata")
        extra = fields.get("ext_metadata")
        impl = None
        if extra is not None:
            impl = expect_object(extra, *where, "ext_metadata").get(RANDOM_KEY_IMPL)
        return cls(
            name=expect(fields.get("param_name"), str, *where, "param_name"),
            write_shape=expect_shape(fields.get("write_shape"), *where, "write_shape"),
            chunk_shape=expect_shape(fields.get("chunk_shape"), *where, "chunk_shape"),
            random_key_impl=None if impl is None else expect(impl, str, *where, RANDOM_KEY_IMPL),
        )


@dataclass(frozen=True, slots=True)
class StepDocument:
    """`_CHECKPOINT_METADATA`: what a checkpoint holds and when it was made.

    Attributes:
        item_handlers: Typestr of the handler, or of every item's handler by name.
        init_timestamp_nsecs: When the save began, in ns since the epoch.
        commit_timestamp_nsecs: When it was committed.
        custom_metadata: Any JSON object of the user's.
        other: Fields that this version does not use; kept when a document is rewritten.
    """

    item_handlers: str | Mapping[str, str] | None = None
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None
    custom_metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    other: Document = field(default_factory=dict[str, object])

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "metrics": {},
            "performance_metrics": {},
            **self.other,
            "item_handlers": self.item_handlers,
            "init_timestamp_nsecs": self.init_timestamp_nsecs,
            "commit_timestamp_nsecs": self.commit_timestamp_nsecs,
            "custom_metadata": dict(self.custom_metadata),
        }

    @classmethod
    def from_json(cls, document: object, where: str) -> StepDocument:
        """Decode the JSON form.

        Raises:
            FormatError: A field is of a wrong type.
        """
        fields = dict(expect_object(document, where))
        handlers = fields.pop("item_handlers", None)
        if isinstance(handlers, dict):
            handlers = {
                str(name): expect(typestr, str, f"{where}: item_handlers[{name!r}]")
                for name, typestr in cast(dict[str, object], handlers).items()
                if typestr is not None
            }
        elif handlers is not None:
            handlers = expect(handlers, str, f"{where}: item_handlers")
        times = [fields.pop(f"{name}_timestamp_nsecs", None) for name in ("init", "commit")]
        if any(type(time) not in (int, type(None)) for time in times):
            raise FormatError(f"{where}: timestamps must be integers, found {times}")
        custom = expect_object(
            fields.pop("custom_metadata", None) or {}, f"{where}: custom_metadata"
        )
        return cls(handlers, cast(int, times[0]), cast(int, times[1]), custom, fields)


def _decode_detail(detail: Mapping[str, str]) -> LeafDetail:
    found = LeafDetail(detail.get("type"), detail.get("dtype"))
    if {type(text) for text in (found.type, found.dtype)} - {str, type(None)}:
        raise TypeError(f"expected texts, found {detail}")
    if found.dtype is not None:
        parse_dtype(found.dtype)
    return found


def parse_json(data: bytes, where: str) -> object:
    """Return a JSON document.

    Raises:
        FormatError: The bytes are not JSON.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{where}: expected JSON, found {data[:60]!r} ({error}). The file is damaged or is not "
            "of a checkpoint."
        ) from error


def expect(value: object, kind: type[T], *where: str) -> T:
    """Return a decoded JSON value of a type.

    Args:
        value: The value.
        kind: Its type.
        *where: The file and the fields that lead to the value; put together for an error only.

    Raises:
        FormatError: It is missing or of another type.
    """
    if type(value) is not kind:
        found = "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
        raise FormatError(f"{': '.join(where)}: expected {kind.__name__}, found {found}")
    return value


def expect_object(value: object, *where: str) -> dict[str, object]:
    """Return a decoded JSON object.

    Raises:
        FormatError: It is missing or something else.
    """
    return cast(dict[str, object], expect(value, dict, *where))


def expect_list(value: object, *where: str) -> list[object]:
    """Return a decoded JSON list.

    Raises:
        FormatError: It is missing or something else.
    """
    return cast(list[object], expect(value, list, *where))


def expect_shape(value: object, *where: str) -> Shape:
    """Return a decoded list of lengths.

    Raises:
        FormatError: It is missing or something else.
    """
    lengths = expect_list(value, *where)
    for length in lengths:
        if type(length) is not int:
            expect(length, int, *where)
    return tuple(cast(list[int], lengths))


def _encode_leaves(leaves: Sequence[LeafRecord]) -> dict[str, object]:
    keys: dict[tuple[str, bool], object] = {}  # most keys and values occur many times
    values: dict[object, object] = {}
    entries: dict[str, object] = {}
    for leaf in leaves:
        key_metadata: list[object] = []
        for name, key in zip(leaf.names, leaf.path, strict=True):
            known = name, is_sequence_key(key)
            if known not in keys:
                keys[known] = {"key": name, "key_type": _SEQUENCE if known[1] else _DICT}
            key_metadata.append(keys[known])
        kind = leaf.typestr, leaf.is_empty, leaf.write_shape
        if kind not in values:
            values[kind] = encode_value(leaf)
        entries[str(leaf.names)] = {"key_metadata": key_metadata, "value_metadata": values[kind]}
    return entries


def encode_value(leaf: LeafRecord) -> dict[str, object]:
    """Return the JSON form of a leaf's own record, without its path."""
    value: dict[str, object] = {"value_type": leaf.typestr, "skip_deserialize": leaf.is_empty}
    if leaf.write_shape is not None:
        value["write_shape"] = list(leaf.write_shape)
    return value


def _decode_leaves(entries: Mapping[str, object], where: str) -> list[LeafRecord]:
    decoder = _LeafDecoder()
    leaves: list[LeafRecord] = []
    for id_, entry in entries.items():
        try:
            leaves.append(decoder.decode(entry))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _check_leaf(entry, where, id_)
            raise FormatError(f"{where}: {id_}: {error}") from error
    return leaves


class _LeafDecoder:
    """Decodes the entries of `tree_metadata`.

    There is one for every leaf, so fields are taken for what they should be; what is wrong with one
    that is not, `_check_leaf` says. Keys and values of which there are many are checked once.
    """

    def __init__(self) -> None:
        self._keys: dict[object, tuple[object, str]] = {}
        self._values: dict[object, _RecordedValue] = {}

    def decode(self, entry: Any) -> LeafRecord:
        path: list[object] = []
        names: list[str] = []
        for pair in entry["key_metadata"]:
            recorded = pair["key"], pair["key_type"]
            if recorded not in self._keys:
                self._keys[recorded] = _decode_key(*recorded)
            key, name = self._keys[recorded]
            path.append(key)
            names.append(name)
        value = entry["value_metadata"]
        shape = value.get("write_shape")
        shape = shape if shape is None else tuple(shape)
        recorded = value["value_type"], value.get("skip_deserialize", False), shape
        if recorded not in self._values:
            self._values[recorded] = _checked_value(*recorded)
        known = tuple(names)
        return LeafRecord(tuple(path), known, storage_name(known), *self._values[recorded])


_RecordedValue = tuple[str, bool, Shape | None]


def _checked_value(typestr: object, is_empty: object, shape: object) -> _RecordedValue:
    lengths = cast(Shape, shape or ())
    if type(typestr) is not str or type(is_empty) is not bool or {*map(type, lengths)} - {int}:
        raise TypeError("a field of its value is of a wrong type")
    return typestr, is_empty, cast(Shape | None, shape)


def _decode_key(name: str, kind: int) -> tuple[object, str]:
    if type(name) is not str or kind not in (_SEQUENCE, _DICT):
        raise ValueError(f"key_type must be 1 or 2, found {kind}")
    try:
        key = make_key(name, is_sequence=kind == _SEQUENCE)
    except ValueError as error:
        raise ValueError(f"{name!r} is not a position") from error
    return key, key_name(key)


def _check_leaf(entry: object, *where: str) -> None:
    """Raise an error that says which field of an entry is of a wrong type."""
    fields = expect_object(entry, *where)
    for key in expect_list(fields.get("key_metadata"), *where, "key_metadata"):
        pair = expect_object(key, *where, "key_metadata")
        expect(pair.get("key"), str, *where, "key")
        expect(pair.get("key_type"), int, *where, "key_type")
    value = expect_object(fields.get("value_metadata"), *where, "value_metadata")
    expect(value.get("value_type"), str, *where, "value_type")
    expect(value.get("skip_deserialize", False), bool, *where, "skip_deserialize")
    expect_shape(value.get("write_shape") or [], *where, "write_shape")
