"""The contents of a checkpoint's JSON documents; errors name the place in the document.

`TreeDocument` and `StepDocument` are Orbax's; unknown fields are ignored.
`TreeDetails` is this library's: what Orbax's documents lose about keys and leaf types. Structs
whose names begin with an underscore mirror the fields of a document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from orbit_ckpt._src.arrays.dtypes import parse_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.metadata.codec import (
    check_keys,
    decode_json,
    decode_versioned,
    encode_json,
)
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.tree.keypath import (
    KeyKind,
    KeyPath,
    KeysByName,
    NamePath,
    is_sequence_key,
    make_key,
    name_path,
    storage_name,
)

Document = Mapping[str, object]

UNKNOWN_TYPE = "Unknown"
"""Type of a leaf that nothing records; restored as `np.ndarray` unless asked otherwise."""

EMPTY_TYPES: Mapping[str, object] = {"None": None, "Dict": {}, "List": [], "Tuple": ()}
"""Value types of empty containers and what they stand for, `NamedTuple` apart."""

DETAILS_VERSION = 1
"""Version of the form of `orbit_tree.json`."""

JAX_ARRAY = "jax.Array"
NUMPY_ARRAY = "np.ndarray"
SCALAR = "scalar"
STRING = "string"
"""Value types of leaves that the built-in handlers write."""

BYTES, NUMPY_BYTES = "bytes", "numpy.bytes"
"""What `LeafDetail.type` says of bytes and of NumPy's, which are stored as arrays."""

_SEQUENCE, _DICT = 1, 2

_Flag = bool | int | None
"""A flag as Orbax writes it: what the caller passed, so 0, 1 or null too."""


class LeafRecord(Struct, frozen=True, gc=False):
    """One leaf of a tree as `_METADATA` records it.

    A struct, the kind of object fastest to create, because every leaf has one.

    Attributes:
        path: Its path.
        names: The names of the path's keys.
        name: Storage name.
        typestr: The type handler that wrote it, or the kind of an empty container.
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
        """Return the record of a leaf stored under the name of its path."""
        names = name_path(path)
        return cls(path, names, storage_name(names), typestr, is_empty)


class TreeDocument(Struct, frozen=True):
    """`_METADATA`: the leaves of a tree and how they are stored.

    Attributes:
        leaves: In the order of JAX's flattening.
        use_ocdbt: Whether arrays are in an OCDBT database, None if not recorded.
        use_zarr3: Whether arrays are zarr3, else zarr2.
        stores_fill_values: Whether chunks of zeros were written too, so that a missing chunk means
            data loss.
        custom_metadata: Any JSON value of the user.
        rich_types: The text of Orbax's `value_metadata_tree`, None if not recorded.
    """

    leaves: Sequence[LeafRecord]
    use_ocdbt: bool | None = None
    use_zarr3: bool = False
    stores_fill_values: bool = True
    custom_metadata: object = None
    rich_types: str | None = None

    def encode(self) -> bytes:
        """Return the JSON form.

        Raises:
            TypeError: The custom metadata is not JSON.
        """
        rich_types = UNSET if self.rich_types is None else self.rich_types
        custom = msgspec.Raw(encode_user_json(self.custom_metadata))
        return encode_json(
            _Tree(
                tree_metadata=_encode_leaves(self.leaves),
                use_ocdbt=self.use_ocdbt,
                use_zarr3=self.use_zarr3,
                store_array_data_equal_to_fill_value=self.stores_fill_values,
                custom_metadata=custom,
                value_metadata_tree=rich_types,
            )
        )

    @classmethod
    def decode(cls, data: bytes, where: str) -> TreeDocument:
        """Decode the JSON form.

        Raises:
            FormatError: A field is missing or has a wrong type.
        """
        tree = decode_json(data, _Tree, where, repeats=True)
        if data.count(_ONCE_PER_LEAF) != len(tree.tree_metadata):
            check_keys(data, where)  # slow: only if a leaf may have been dropped
        return cls(
            leaves=_decode_leaves(tree.tree_metadata, f"{where}: tree_metadata"),
            use_ocdbt=None if tree.use_ocdbt is None else bool(tree.use_ocdbt),
            use_zarr3=bool(tree.use_zarr3),
            stores_fill_values=bool(tree.store_array_data_equal_to_fill_value),
            custom_metadata=tree.custom_metadata,
            rich_types=tree.value_metadata_tree or None,
        )


class LeafDetail(Struct, frozen=True, omit_defaults=True):
    """What Orbax's documents lose about one leaf.

    Attributes:
        type: The leaf's type where its typestr is ambiguous: `bytes`, `numpy.bytes`, `numpy` (a
            numpy scalar or string), or the `module:qualname` of an empty namedtuple's class.
        dtype: Logical dtype where the stored one differs.
    """

    type: str | None = None
    dtype: str | None = None


class TreeDetails(Struct, frozen=True):
    """`orbit_tree.json`: what Orbax's documents lose about a tree; lists only differences.

    Attributes:
        key_kinds: Kinds of the keys of a leaf's path, by storage name.
        leaves: Details of leaves, by storage name.
        format_version: Version of the document's format.
    """

    key_kinds: dict[str, Sequence[KeyKind | None]] = field(name="keys", default_factory=dict)
    leaves: dict[str, LeafDetail] = field(default_factory=dict)
    format_version: int = DETAILS_VERSION

    def __bool__(self) -> bool:
        return bool(self.key_kinds or self.leaves)

    @classmethod
    def decode(cls, data: bytes, where: str) -> TreeDetails:
        """Decode the JSON form.

        Raises:
            FormatError: A field is missing or has a wrong type, or the version is newer.
        """
        details = decode_versioned(data, cls, where, newest=DETAILS_VERSION)
        for name, detail in details.leaves.items():
            try:
                parse_dtype(detail.dtype or "bool")
            except TypeError as error:
                raise FormatError(f"{where}: leaves: {name}: {error}") from error
        return details

    def apply(self, leaf: LeafRecord) -> LeafRecord:
        """Return the leaf with its original keys."""
        kinds = self.key_kinds.get(leaf.name)
        if kinds is None or len(kinds) != len(leaf.path):
            return leaf
        path = tuple(
            key if kind is None else make_key(name, is_sequence=is_sequence_key(key), kind=kind)
            for key, name, kind in zip(leaf.path, leaf.names, kinds, strict=True)
        )
        return msgspec.structs.replace(leaf, path=path)


class StepDocument(Struct, frozen=True):
    """`_CHECKPOINT_METADATA`: the contents and times of a checkpoint.

    Attributes:
        item_handlers: Typestr of the handler, or of every item's handler by name.
        init_timestamp_nsecs: Start of the save, in ns since the epoch.
        commit_timestamp_nsecs: Time of the commit, in ns since the epoch.
        custom_metadata: Any JSON object of the user.
        other: Fields that this version does not use; kept when a document is rewritten.
    """

    item_handlers: str | Mapping[str, str] | None = None
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None
    custom_metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    other: Document = field(default_factory=dict[str, object])

    def encode(self) -> bytes:
        """Return the JSON form."""
        return encode_user_json(
            {
                "metrics": {},
                "performance_metrics": {},
                **self.other,
                "item_handlers": self.item_handlers,
                "init_timestamp_nsecs": self.init_timestamp_nsecs,
                "commit_timestamp_nsecs": self.commit_timestamp_nsecs,
                "custom_metadata": dict(self.custom_metadata),
            }
        )

    @classmethod
    def decode(cls, data: bytes, where: str) -> StepDocument:
        """Decode the JSON form.

        Raises:
            FormatError: A field has a wrong type.
        """
        step = decode_json(data, _Step, where)
        other = decode_json(data, dict[str, Any], where, repeats=True)  # checked above
        handlers = step.item_handlers
        if isinstance(handlers, dict):
            handlers = {name: typestr for name, typestr in handlers.items() if typestr is not None}
        for name in _Step.__struct_fields__:
            other.pop(name, None)
        return cls(
            handlers,
            step.init_timestamp_nsecs,
            step.commit_timestamp_nsecs,
            step.custom_metadata or {},
            other,
        )


class _Key(Struct, frozen=True, gc=False):
    key: str
    key_type: Literal[1, 2]


class _Value(Struct, frozen=True, gc=False):
    value_type: str
    skip_deserialize: _Flag = False
    write_shape: Shape | UnsetType | None = UNSET


class _Leaf(Struct, frozen=True, gc=False):
    key_metadata: list[_Key]
    value_metadata: _Value


class _Tree(Struct):
    tree_metadata: dict[str, _Leaf]
    use_ocdbt: _Flag = None
    use_zarr3: _Flag = False
    store_array_data_equal_to_fill_value: _Flag = False
    custom_metadata: Any = None
    value_metadata_tree: str | UnsetType | None = UNSET


_ONCE_PER_LEAF = b'"value_metadata":'
"""Occurs once for every leaf, because quotes in texts are escaped."""


class _Step(Struct):
    item_handlers: str | dict[str, str | None] | None = None
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None
    custom_metadata: dict[str, Any] | None = None


def encode_values(leaves: Sequence[LeafRecord]) -> list[dict[str, object]]:
    """Return the JSON forms of the leaves' own records, without their paths; do not change them."""
    values = _Values()
    encoded = {value: msgspec.to_builtins(value) for value in set(map(values.of, leaves))}
    return [encoded[values.of(leaf)] for leaf in leaves]


class _Values(dict[tuple[str, bool, Shape | None], _Value]):
    """The values of leaves; many are equal."""

    def __missing__(self, key: tuple[str, bool, Shape | None]) -> _Value:
        typestr, is_empty, shape = key
        self[key] = value = _Value(typestr, is_empty, UNSET if shape is None else shape)
        return value

    def of(self, leaf: LeafRecord) -> _Value:
        """Return the value of a leaf."""
        return self[leaf.typestr, leaf.is_empty, leaf.write_shape]


def _encode_leaves(leaves: Sequence[LeafRecord]) -> dict[str, _Leaf]:
    keys: dict[tuple[str, type], _Key] = {}
    values = _Values()

    def add(name: str, key: object) -> _Key:
        found = keys[name, type(key)] = _Key(name, _SEQUENCE if is_sequence_key(key) else _DICT)
        return found

    return {
        str(leaf.names): _Leaf(
            [
                keys.get((name, type(key))) or add(name, key)
                for name, key in zip(leaf.names, leaf.path, strict=True)
            ],
            values.of(leaf),
        )
        for leaf in leaves
    }


def _decode_leaves(entries: Mapping[str, _Leaf], where: str) -> list[LeafRecord]:
    keys = {_DICT: KeysByName(is_sequence=False), _SEQUENCE: KeysByName(is_sequence=True)}
    leaves: list[LeafRecord] = []
    for id_, entry in entries.items():
        recorded = entry.key_metadata
        names = tuple([key.key for key in recorded])
        try:
            path = tuple([keys[key.key_type][key.key] for key in recorded])
        except ValueError as error:
            raise FormatError(f"{where}: {id_}: {error}") from error
        value = entry.value_metadata
        leaves.append(
            LeafRecord(
                path,
                names,
                storage_name(names),
                value.value_type,
                bool(value.skip_deserialize),
                None if value.write_shape is UNSET else value.write_shape,
            )
        )
    return leaves
