"""Compare two stored trees: their structure from the metadata, and optionally their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.compare import (
    EXACT,
    Comparison,
    ValueChange,
    choose_arithmetic,
)
from orbit_ckpt._src.arrays.dtypes import DType, is_prng_dtype
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata, is_same_sharding
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.formats.registry import open_checkpoint
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.guards import is_dict, is_list_or_tuple
from orbit_ckpt._src.metadata.rich_types import class_name, find_namedtuple
from orbit_ckpt._src.metadata.schema import NUMPY_BYTES, UNKNOWN_TYPE, LeafRecord
from orbit_ckpt._src.metadata.values import ArrayMetadata, ScalarMetadata, StringMetadata
from orbit_ckpt._src.pytree.compare.digests import ChunkChange, compare_digests, digested_arrays
from orbit_ckpt._src.pytree.compare.report import (
    CheckpointDiff,
    LeafChange,
    UnmatchedLeaf,
    naming_checkpoint,
)
from orbit_ckpt._src.pytree.describe import DescribedLeaves, rebuild
from orbit_ckpt._src.runtime.threads import run_in_thread
from orbit_ckpt._src.transform.patterns import leaves_matching
from orbit_ckpt._src.tree.build import is_namedtuple
from orbit_ckpt._src.tree.diff import compare_names, match_renamed
from orbit_ckpt._src.tree.keypath import NamePath, format_path
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry

_ARRAY, _SCALAR, _BYTES, _UNKNOWN = "array", "scalar", "bytes", "unknown"
_SEPARATORS = (".", "/")
"""Separators with which programs join nested keys: ours in safetensors, Flax, T5X, PyTorch."""

_NUMERIC = frozenset({_ARRAY, _SCALAR, _BYTES, _UNKNOWN})


def compare_checkpoints(  # noqa: PLR0913 - options of `diff` and of the command
    a: Path,
    b: Path,
    registry: TypeHandlerRegistry,
    *,
    values: bool,
    max_bytes: int,
    readers: tuple[Format | None, Format | None] = (None, None),
    only: Sequence[str] = (),
    how: Comparison = EXACT,
    progress: Callable[[int, int], object] | None = None,
    damage: dict[NamePath, CorruptionError] | None = None,
    digests: bool = False,
    executor: Executor | None = None,
) -> CheckpointDiff:
    """Compare the trees of two checkpoints.

    Args:
        a: The first checkpoint, as for `open_checkpoint`.
        b: The second.
        registry: Type handlers of their leaves.
        values: Whether to read and compare values too.
        max_bytes: Approximate limit of bytes of values held at once.
        readers: The formats to read them as, None to detect them.
        only: Patterns of which a leaf's name must match one, if any are given.
        how: Tolerance, and what else to compute.
        progress: Called with the bytes of values compared so far and their total.
        digests: Whether to compare values by digests where both checkpoints have some.
        damage: Receives the errors of damaged leaves by name, which then do not end the comparison.
        executor: Where to read and compare the values of arrays; None for threads of this process.

    Raises:
        CheckpointNotFoundError: One contains no tree.
        CorruptionError: Stored data is missing or damaged; a note names the checkpoint.
    """
    first, second = run_in_thread(
        lambda: (_open(a, registry, readers[0]), _open(b, registry, readers[1]))
    )
    notes: list[LeafChange] = []
    if (separator := _separator_between(first, second)) is not None:
        second = _under_names_of(first, second, separator)
        notes.append(_layout_note(first, separator))
    if only:
        first, second = _restricted(first, second, only)
    common = [names for names in first.leaves if names in second.leaves]
    found: dict[NamePath, ValueChange] = {}
    by_digest, tiny = ({}, []) if values or not digests else _by_digest(first, second, common)
    if values or tiny:
        asked = (how, progress, damage, executor)
        found = _compare_values(first, second, tiny or common, max_bytes, asked)
    changed = _changed_containers(first, second)
    for names in common:
        pair = first.leaves[names], second.leaves[names]
        for change in _changes(format_path(names), *pair, found.get(names)):
            (notes if _is_note(change) else changed).append(change)
    changed += [
        LeafChange(format_path(names), "chunks", None, change)
        for names, change in by_digest.items()
        if change.differing
    ]
    only_in_a, only_in_b = _unmatched(first, second)
    return CheckpointDiff(
        a,
        b,
        only_in_a,
        only_in_b,
        tuple(changed),
        tuple(notes),
        common=len(common),
        has_values=values,
        by_digest=len(by_digest) + len(tiny),
    )


class _Leaf(Struct, frozen=True):
    """The metadata of one leaf.

    Attributes:
        record: Its record.
        kind: The kind of value.
        type: Its type; leaves of one kind may have several.
        shape: Shape of an array or scalar.
        dtype: Its dtype.
        sharding: Its recorded sharding.
    """

    record: LeafRecord
    kind: str
    type: str
    shape: Shape | None = None
    dtype: DType | None = None
    sharding: ShardingMetadata | None = None

    def __str__(self) -> str:
        if self.shape is None:
            return self.kind
        prefix = f"{self.kind} " if self.kind != _ARRAY else ""
        return f"{prefix}{self.dtype}{list(self.shape) if self.kind != _SCALAR else ''}"

    def is_kind_of(self, other: _Leaf) -> bool:
        """Return whether both are or may be of one kind, which old checkpoints lack for arrays."""
        if self.kind == other.kind:
            return True
        kinds = {self.kind, other.kind}
        return _UNKNOWN in kinds and kinds <= _NUMERIC

    def has_values_like(self, other: _Leaf) -> bool:
        """Return whether both values can be compared element by element."""
        if self.dtype is None or other.dtype is None:
            return self.kind == other.kind and not self.record.is_empty
        if self.shape != other.shape:
            return False
        if is_prng_dtype(self.dtype) or is_prng_dtype(other.dtype):
            return self.dtype == other.dtype
        return choose_arithmetic(self.dtype, other.dtype) is not None


class _Side(Struct, frozen=True):
    """One of the checkpoints.

    Attributes:
        stored: Its leaves.
        leaves: Their metadata, by names.
        containers: Kinds of its containers.
    """

    stored: DescribedLeaves
    leaves: Mapping[NamePath, _Leaf]
    containers: Mapping[NamePath, str]


def _open(path: Path, registry: TypeHandlerRegistry, reader: Format | None) -> _Side:
    with naming_checkpoint(path):
        source = open_checkpoint(path, reader=reader)
        stored = DescribedLeaves(source, source.load_batch(), registry)
        records = source.document.leaves
        metadata = stored.metadata_now(records)
        leaves = {
            record.names: _describe(source, record, metadata[record.names]) for record in records
        }
        return _Side(stored, leaves, _containers(source))


def _is_flat(side: _Side) -> bool:
    """Return whether the tree is one dict whose keys may be joined nested ones."""
    return all(len(names) == 1 for names in side.leaves) and any(
        separator in name for (name,) in side.leaves for separator in _SEPARATORS
    )


def _separator_between(a: _Side, b: _Side) -> str | None:
    """Return the separator that joins one tree's keys to the names of the other, flat one.

    None if both are nested, or neither is, or if no joined key is a name of the other.
    """
    if (is_flat := _is_flat(a)) == _is_flat(b):
        return None
    flat, nested = (a, b) if is_flat else (b, a)
    deep = [names for names in nested.leaves if len(names) > 1]
    counts = {s: sum((s.join(names),) in flat.leaves for names in deep) for s in _SEPARATORS}
    best = max(_SEPARATORS, key=counts.__getitem__)
    return best if counts[best] else None


def _under_names_of(a: _Side, b: _Side, separator: str) -> _Side:
    """Return a tree with its leaves under another's names, where joined keys match them."""

    def by_joined_name(side: _Side) -> dict[str, NamePath | None]:
        joined: dict[str, NamePath | None] = {}
        for names in side.leaves:
            name = separator.join(names)
            joined[name] = None if name in joined else names
        return joined

    wanted, found = by_joined_name(a), by_joined_name(b)
    renamed = {names: new for name, names in found.items() if names and (new := wanted.get(name))}
    leaves = {renamed.get(names, names): leaf for names, leaf in b.leaves.items()}
    return _Side(b.stored, leaves, {})


def _restricted(a: _Side, b: _Side, only: Sequence[str]) -> tuple[_Side, _Side]:
    """Return both trees with those leaves only that a pattern matches in either.

    Raises:
        TransformError: A pattern matches nothing.
    """
    chosen = leaves_matching("only", only, dict.fromkeys([*a.leaves, *b.leaves]))

    def restrict(side: _Side) -> _Side:
        leaves = {names: leaf for names, leaf in side.leaves.items() if names in chosen}
        return _Side(side.stored, leaves, {})

    return restrict(a), restrict(b)


def _layout_note(a: _Side, separator: str) -> LeafChange:
    nested, flat = "nested", f"flat, keys joined by {separator!r}"
    before, after = (flat, nested) if _is_flat(a) else (nested, flat)
    return LeafChange("<root>", "layout", before, after)


def _describe(source: StoredTree, record: LeafRecord, metadata: object) -> _Leaf:
    detail = source.details.leaves.get(record.name)
    detailed = detail.type if detail is not None else None
    if record.name in source.inline:
        return _describe_inline(record, source.inline[record.name])
    if record.is_empty:
        kind = "None" if record.typestr == "None" else f"empty {record.typestr.lower()}"
        return _Leaf(record, f"{kind} {detailed}" if detailed else kind, "")
    if isinstance(metadata, StringMetadata):
        return _Leaf(record, "str", "np.str_" if detailed else "str")
    if not isinstance(metadata, ArrayMetadata):
        return _Leaf(record, record.typestr, record.typestr)
    kind, type_ = _ARRAY, record.typestr
    if isinstance(metadata, ScalarMetadata):
        kind, type_ = _SCALAR, "numpy scalar" if detailed else "Python scalar"
    elif detailed is not None:
        kind, type_ = _BYTES, "np.bytes_" if detailed == NUMPY_BYTES else detailed
    elif record.typestr == UNKNOWN_TYPE:
        kind = _UNKNOWN
    return _Leaf(record, kind, type_, metadata.shape, metadata.dtype, metadata.sharding)


def _describe_inline(record: LeafRecord, value: object) -> _Leaf:
    """Describe a leaf whose value an old writer stored in the structure."""
    if isinstance(value, bytes):
        return _Leaf(record, _BYTES, _BYTES, (len(value),), np.dtype(np.uint8))
    if isinstance(value, np.ndarray | np.generic | int | float | complex):
        host = np.asarray(cast(object, value))
        kind = _ARRAY if isinstance(value, np.ndarray) else _SCALAR
        return _Leaf(record, kind, UNKNOWN_TYPE, host.shape, host.dtype)
    return _Leaf(record, type(value).__name__, UNKNOWN_TYPE)


def _by_digest(
    a: _Side, b: _Side, common: Sequence[NamePath]
) -> tuple[dict[NamePath, ChunkChange], list[NamePath]]:
    """Return the leaves that digests compare, and those that need no data file to be read."""
    first, second = (digested_arrays(side.stored.source.path) for side in (a, b))
    compared: dict[NamePath, ChunkChange] = {}
    tiny: list[NamePath] = []
    for names in common if first and second else ():
        one, other = a.leaves[names], b.leaves[names]
        if not one.has_values_like(other):
            continue
        pair = first.get(one.record.name), second.get(other.record.name)
        if pair[0] is None or pair[1] is None:
            if one.dtype is None:
                tiny.append(names)  # a string
        elif one.dtype == other.dtype and (change := compare_digests(pair[0], pair[1])) is not None:
            compared[names] = change
        elif not (pair[0].digests or pair[1].digests):
            tiny.append(names)
    return compared, tiny


def _compare_values(
    a: _Side, b: _Side, common: Sequence[NamePath], max_bytes: int, asked: tuple[Any, ...]
) -> dict[NamePath, ValueChange]:
    from orbit_ckpt._src.pytree.compare.values import (  # noqa: PLC0415 - imports JAX
        RecordPair,
        Requests,
        compare_leaves,
    )
    from orbit_ckpt._src.pytree.restore.leaves import StoredLeaves  # noqa: PLC0415 - as above
    from orbit_ckpt._src.runtime.loop import run_sync  # noqa: PLC0415 - imports asyncio

    pairs = [
        RecordPair(a.leaves[names].record, b.leaves[names].record)
        for names in common
        if a.leaves[names].has_values_like(b.leaves[names])
    ]
    first, second = (
        StoredLeaves(side.stored.source, side.stored.batch, side.stored.registry) for side in (a, b)
    )
    requests = Requests(*asked)
    return run_sync(compare_leaves(first, second, pairs, max_bytes=max_bytes, requests=requests))


def _changes(path: str, a: _Leaf, b: _Leaf, values: ValueChange | None) -> Iterator[LeafChange]:
    """Yield the differences of a leaf of both trees, including notes."""
    if not a.is_kind_of(b):
        yield LeafChange(path, "kind", str(a), str(b))
    elif a.shape != b.shape:
        yield LeafChange(path, "shape", a.shape, b.shape)
    if a.is_kind_of(b) and a.dtype != b.dtype:
        yield LeafChange(path, "dtype", a.dtype, b.dtype)
    if a.kind == b.kind and a.type != b.type and UNKNOWN_TYPE not in (a.type, b.type):
        yield LeafChange(path, "type", a.type, b.type)
    one, other = a.sharding, b.sharding
    if one is not None and other is not None and not is_same_sharding(one, other):
        yield LeafChange(path, "sharding", one, other)
    if values is None:
        return
    if values.differing or values.within or values.compared_as is not None:
        yield LeafChange(path, "values", values.a, values.b, values)
    elif not values.has_same_bits:
        yield LeafChange(path, "bits", None, None, values)


def _is_note(change: LeafChange) -> bool:
    """Return whether a difference leaves the trees equal."""
    if change.what == "values":
        return change.values is not None and not change.values.differing
    return change.what in ("type", "sharding", "bits")


def _unmatched(a: _Side, b: _Side) -> tuple[tuple[UnmatchedLeaf, ...], tuple[UnmatchedLeaf, ...]]:
    """Return the leaves that only one of the checkpoints has."""
    names = compare_names(list(a.leaves), list(b.leaves))
    renamed = match_renamed(
        {path: _signature(a.leaves[path]) for path in names.missing},
        {path: _signature(b.leaves[path]) for path in names.unexpected},
    )
    origins = {new: old for old, new in renamed.items()}

    def describe(
        side: _Side, paths: Sequence[NamePath], others: Mapping[NamePath, NamePath]
    ) -> tuple[UnmatchedLeaf, ...]:
        return tuple(
            UnmatchedLeaf(
                format_path(path),
                str(side.leaves[path]),
                format_path(others[path]) if path in others else None,
            )
            for path in paths
        )

    return describe(a, names.missing, renamed), describe(b, names.unexpected, origins)


def _signature(leaf: _Leaf) -> tuple[object, ...]:
    return leaf.kind, leaf.shape, leaf.dtype


def _changed_containers(a: _Side, b: _Side) -> list[LeafChange]:
    """Return the containers of both trees whose kinds differ, as far as recorded."""
    is_recorded = all(side.stored.source.document.rich_types is not None for side in (a, b))
    return [
        LeafChange(format_path(names), "container", kind, b.containers[names])
        for names, kind in a.containers.items()
        if names in b.containers
        and kind != b.containers[names]
        and (is_recorded or _is_sequence(kind) is not _is_sequence(b.containers[names]))
    ]


def _is_sequence(kind: str) -> bool:
    """Return whether Orbax without rich types records a kind as positions."""
    return kind in ("list", "tuple")


def _containers(source: StoredTree) -> dict[NamePath, str]:
    """Return the kinds of all containers with leaves, by their paths' names."""
    leaf = object()
    kinds: dict[NamePath, str] = {}

    def walk(node: object, path: NamePath) -> None:
        if node is leaf:
            return
        if is_namedtuple(node):
            fields: tuple[str, ...] = getattr(node, "_fields")  # noqa: B009 - untyped
            is_known = find_namedtuple(class_name(type(node)), fields) is type(node)
            kinds[path] = (
                f"namedtuple {class_name(type(node)) if is_known else type(node).__name__}"
            )
            children = list(zip(fields, node, strict=True))
        elif is_dict(node):
            types = {type(key).__name__ for key in node} - {"str"}
            kinds[path] = f"dict with keys of {', '.join(sorted(types))}" if types else "dict"
            children = [(str(key), child) for key, child in node.items()]
        else:
            elements = node if is_list_or_tuple(node) else ()
            kinds[path] = "tuple" if isinstance(node, tuple) else "list"
            children = [(str(i), child) for i, child in enumerate(elements)]
        for name, child in children:
            walk(child, (*path, name))

    values = dict.fromkeys([record.names for record in source.document.leaves], leaf)
    walk(rebuild(source, values, rich_types=True), ())
    return kinds
