"""Metadata of a checkpoint's leaves, in Orbax's classes.

Classes with an instance per leaf are structs, the fastest to create. They are dataclasses too,
since programs written for Orbax call `dataclasses.replace` and similar functions. As in Orbax,
names and directories do not count in comparisons.
"""

from __future__ import annotations

from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.recorded_sharding import NamedShardingMetadata, ShardingMetadata
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.drawing import Branch, Drawing, Tree
from orbit_ckpt._src.guards import is_list_or_tuple, is_mapping
from orbit_ckpt._src.lazy_imports import when_imported
from orbit_ckpt._src.text import human_bytes, shorten


@dataclass(frozen=True, slots=True)
class StorageMetadata:
    """How an array is stored.

    Attributes:
        chunk_shape: Shape of its chunks.
        write_shape: Shape of the part that one device wrote, for JAX arrays.
        compression: Name of the compressor, None if uncompressed; ignored in comparisons, as in
            Orbax.
    """

    chunk_shape: Shape | None
    write_shape: Shape | None = None
    compression: str | None = field(default=None, compare=False)


@dataclass(frozen=True, init=False, repr=False, eq=False, match_args=False)
class Metadata(Struct, frozen=True, gc=False, eq=False):
    """A leaf of which only the name is known.

    Attributes:
        name: Storage name.
        directory: Directory of the item it belongs to.
    """

    name: str
    directory: Path | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Metadata)

    def __hash__(self) -> int:
        return hash(Metadata)


@dataclass(frozen=True, init=False, repr=False, eq=False, match_args=False)
class ArrayMetadata(Metadata, frozen=True, gc=False, eq=False):
    """An array.

    Attributes:
        shape: Its shape.
        sharding: Its sharding when saved, None if not recorded.
        dtype: Its dtype; that of the key type for typed PRNG keys.
        storage: How it is stored.
    """

    shape: Shape
    sharding: ShardingMetadata | None
    dtype: DType
    storage: StorageMetadata | None = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ArrayMetadata)
            and self.shape == other.shape
            and self.dtype == other.dtype
            and self.sharding == other.sharding
            and self.storage == other.storage
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size in memory in bytes."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, init=False, repr=False, eq=False, match_args=False)
class ScalarMetadata(ArrayMetadata, frozen=True, gc=False, eq=False):
    """A Python or numpy scalar."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScalarMetadata) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


@dataclass(frozen=True, init=False, repr=False, eq=False, match_args=False)
class StringMetadata(Metadata, frozen=True, gc=False, eq=False):
    """A string."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StringMetadata)

    def __hash__(self) -> int:
        return hash(StringMetadata)


MetadataTree: TypeAlias = Metadata | Mapping[str, "MetadataTree"] | Sequence["MetadataTree"] | None
"""The containers of a stored tree, with metadata for every leaf."""


@dataclass(frozen=True, repr=False)
class TreeMetadata:
    """Metadata of a tree; itself a pytree with the leaves of `tree`. Prints as a tree with sizes.

    `metadata["w"]`, `metadata.items()` and similar methods are those of `tree`.

    Attributes:
        tree: The tree's structure with leaf metadata as leaves.
        custom_metadata: The user's metadata.
    """

    tree: MetadataTree
    custom_metadata: object = None

    @property
    def leaves(self) -> dict[str, Metadata]:
        """Metadata of the leaves by name, `params/dense/kernel`."""
        return dict(_leaves_below("", self.tree))

    def __getitem__(self, key: Any) -> Any:
        return self._container[key]

    def __contains__(self, key: object) -> bool:
        return key in self._container

    def __iter__(self) -> Iterator[Any]:
        return iter(self._container)

    def __len__(self) -> int:
        return len(self._container)

    def get(self, key: str, default: object = None) -> Any:
        """Return the value under a key of the outermost dict."""
        return self._container.get(key, default)

    def keys(self) -> KeysView[str]:
        """Return the keys of the outermost dict."""
        return self._container.keys()

    def values(self) -> ValuesView[Any]:
        """Return the values of the outermost dict."""
        return self._container.values()

    def items(self) -> ItemsView[str, Any]:
        """Return the keys and values of the outermost dict."""
        return self._container.items()

    @property
    def _container(self) -> Any:
        """The outermost container; a single leaf has none."""
        return self.tree

    def _draw(self) -> Drawing:
        """Return the tree with types, shardings and sizes."""
        return _draw_trees("TreeMetadata", {"": self})

    def __repr__(self) -> str:
        return self._draw().text()

    def _repr_html_(self) -> str:
        return self._draw().html()


def _register(jax: ModuleType) -> None:
    """Make metadata a node with the children, and the keys, of the outermost container."""
    tree_util = jax.tree_util

    def flatten_with_keys(metadata: TreeMetadata) -> tuple[list[tuple[Any, Any]], Any]:
        def is_child(node: object) -> bool:
            return node is not metadata.tree

        pairs, structure = tree_util.tree_flatten_with_path(metadata.tree, is_child)
        bare = tree_util.GetAttrKey("tree")
        children = [(path[0] if path else bare, child) for path, child in pairs]
        return children, (structure, metadata.custom_metadata)

    def unflatten(auxiliary: tuple[Any, object], children: Iterable[Any]) -> TreeMetadata:
        structure, custom_metadata = auxiliary
        return TreeMetadata(tree_util.tree_unflatten(structure, children), custom_metadata)

    tree_util.register_pytree_with_keys(TreeMetadata, flatten_with_keys, unflatten)


when_imported("jax", _register)


class StepStatistics(dict[str, object]):
    """Timings of a save by name; `statistics.step` is `statistics.get("step")`, as in Orbax."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.get(name)


@dataclass(frozen=True, slots=True)
class RootMetadata:
    """Metadata of a run.

    Attributes:
        internal_metadata: Reserved for the library; empty so far.
        custom_metadata: The JSON object that the user gave to the manager.
    """

    internal_metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    custom_metadata: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(slots=True, repr=False)
class StepMetadata:
    """Metadata of a whole checkpoint. Prints as the trees of its items, after its other metadata.

    Attributes:
        item_handlers: Typestr of the handler, or of every item's handler by name.
        item_metadata: Metadata of the item, or of every item by name.
        metrics: Metrics saved with the step.
        performance_metrics: Timings that the writer recorded, as items and as attributes; None for
            each one not recorded.
        init_timestamp_nsecs: Start of the save, in ns since the epoch.
        commit_timestamp_nsecs: Time of the commit, in ns since the epoch.
        custom_metadata: The user's metadata.
    """

    item_handlers: str | Mapping[str, str] | None = None
    item_metadata: object = None
    metrics: Mapping[str, object] = field(default_factory=dict[str, object])
    performance_metrics: StepStatistics = field(default_factory=StepStatistics)
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None
    custom_metadata: Mapping[str, object] = field(default_factory=dict[str, object])

    def _draw(self) -> Drawing:
        """Return what is known of the checkpoint."""
        title = "StepMetadata"
        if self.commit_timestamp_nsecs is not None:
            saved = datetime.fromtimestamp(self.commit_timestamp_nsecs / 1e9, UTC)
            title += f" of a checkpoint saved at {saved:%Y-%m-%d %H:%M:%S} UTC"
        found = self.item_metadata
        items = dict(found) if is_mapping(found) else {"": found}
        known = {"metrics": self.metrics, "custom metadata": self.custom_metadata}
        footer = [f"{name}: {shorten(repr(dict(value)))}" for name, value in known.items() if value]
        return draw_items(title, {str(name): item for name, item in items.items()}, footer)

    def __repr__(self) -> str:
        return self._draw().text()

    def _repr_html_(self) -> str:
        return self._draw().html()


def draw_items(title: str, items: Mapping[str, object], footer: Sequence[str] = ()) -> Drawing:
    """Return the metadata of items, as trees where they are.

    Args:
        title: What has these items.
        items: Their metadata by name; the name of a single item may be empty.
        footer: Lines to add.
    """
    trees = {name: item for name, item in items.items() if isinstance(item, TreeMetadata)}
    others = [
        f"{name or 'item'}: {shorten(repr(item))}"
        for name, item in items.items()
        if name not in trees and item is not None
    ]
    return _draw_trees(title, trees, [*others, *footer])


def _leaves_below(name: str, node: object) -> Iterator[tuple[str, Metadata]]:
    """Yield the leaves of a tree with their names."""
    if isinstance(node, Metadata):
        yield name, node
    for key, child in _children(node):
        yield from _leaves_below(f"{name}/{key}" if name else key, child)


def _draw_trees(
    title: str, trees: Mapping[str, TreeMetadata], footer: Sequence[str] = ()
) -> Drawing:
    """Return metadata of trees as one tree, in which each that has a name is a branch."""
    branches: list[Branch] = []
    lines = list(footer)
    total, nbytes = 0, 0
    for name, metadata in trees.items():
        branch, leaves, size = _branch(name, metadata.tree)
        total, nbytes = total + leaves, nbytes + size
        branches += [branch] if name or not branch.children else branch.children
        if metadata.custom_metadata is not None:
            label = f"custom metadata of {name}" if name else "custom metadata"
            lines.append(f"{label}: {shorten(repr(metadata.custom_metadata))}")
    if trees:
        title += f": {_count(total)}, {human_bytes(nbytes)}"
    return Drawing(title, [Tree(branches, right={2})] if branches else [], lines)


def _branch(label: str, node: object) -> tuple[Branch, int, int]:
    """Return a node to draw, the number of leaves below it, and their size in memory."""
    children = _children(node)
    if not children:
        cells, nbytes = _describe_leaf(node)
        is_empty = node is None or is_mapping(node) or is_list_or_tuple(node)
        return Branch(label, cells), int(not is_empty), nbytes
    parts = [_branch(name, child) for name, child in children]
    leaves, nbytes = sum(part[1] for part in parts), sum(part[2] for part in parts)
    cells = _count(leaves), "", human_bytes(nbytes)
    return Branch(label, cells, [part[0] for part in parts]), leaves, nbytes


def _count(count: int) -> str:
    return "1 leaf" if count == 1 else f"{count} leaves"


def _children(node: object) -> list[tuple[str, object]]:
    if is_mapping(node):
        return [(str(key), value) for key, value in node.items()]
    if is_list_or_tuple(node):
        names = getattr(node, "_fields", range(len(node)))
        return [(str(name), value) for name, value in zip(names, node, strict=True)]
    return []


def _describe_leaf(leaf: object) -> tuple[Sequence[str], int]:
    """Return the type, the sharding and the size of a leaf as text, and its size."""
    if isinstance(leaf, StringMetadata):
        return ("str",), 0
    if not isinstance(leaf, ArrayMetadata):
        return (shorten("" if type(leaf) is Metadata else repr(leaf)),), 0
    if isinstance(leaf, ScalarMetadata):
        return (str(leaf.dtype),), leaf.nbytes
    sharding = leaf.sharding
    spec = sharding.partition_spec if isinstance(sharding, NamedShardingMetadata) else ()
    split = f"P{spec}" if any(spec) else ""
    shape = ", ".join(map(str, leaf.shape))
    return (f"{leaf.dtype}[{shape}]", split, human_bytes(leaf.nbytes)), leaf.nbytes
