"""A stored tree transformed by rules: renamed leaves, and leaves to compute."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from msgspec import Struct, field, structs

from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.metadata.schema import EMPTY_TYPES, LeafRecord
from orbit_ckpt._src.metadata.values import ArrayMetadata
from orbit_ckpt._src.transform.engine import Rule, apply_rules
from orbit_ckpt._src.transform.legacy import LegacyRules, Original, compile_legacy
from orbit_ckpt._src.transform.nodes import (
    UNKNOWN,
    Apply,
    ArrayInfo,
    FromTarget,
    Part,
    Read,
    inputs_of,
    node_key,
    sources_of,
)
from orbit_ckpt._src.transform.patterns import (
    Patterns,
    join_name,
    leaves_matching,
    split_name,
)
from orbit_ckpt._src.transform.rules import Node
from orbit_ckpt._src.tree.build import build_tree
from orbit_ckpt._src.tree.flatten import FlatTree, flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import DictKey, KeyPath, NamePath, format_path
from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs

_SHOWN = 20


class TransformedTree(Struct, frozen=True):
    """The leaves available to a restore.

    Attributes:
        stored: The stored leaves by names.
        records: Leaves that are read unchanged, by their new names.
        casts: Dtypes of those that are cast as they are read.
        computed: Leaves that are computed.
        paths: Paths of all of these.
        kept: Leaves of the target that rules keep.
        left_out: Leaves that are not wanted; those of the target stay as they are.
        is_final: Whether computed leaves are used as they are; else they are converted as the
            caller requested.
    """

    stored: Mapping[NamePath, LeafRecord]
    records: Mapping[NamePath, LeafRecord]
    casts: Mapping[NamePath, object] = field(default_factory=dict[NamePath, object])
    computed: Mapping[NamePath, Apply | Part] = field(default_factory=dict[NamePath, Apply | Part])
    paths: Mapping[NamePath, KeyPath] = field(default_factory=dict[NamePath, KeyPath])
    kept: frozenset[NamePath] = frozenset()
    left_out: frozenset[NamePath] = frozenset()
    is_final: bool = False

    @property
    def names(self) -> list[NamePath]:
        """All leaves that a target may request."""
        return [*self.records, *self.computed, *self.kept, *self.left_out]


def apply_transforms(
    rules: Sequence[Rule],
    stored: Mapping[NamePath, LeafRecord],
    found: Mapping[NamePath, object],
    target: FlatTree | None,
) -> TransformedTree:
    """Apply rules to a stored tree.

    Args:
        rules: The rules, in order.
        stored: Its leaves by names.
        found: Leaf metadata by names, of the leaves that have any.
        target: The target, None without one.

    Raises:
        TransformError: The rules do not fit the leaves.
    """
    infos = {names: _info(found[names]) if names in found else UNKNOWN for names in stored}
    wanted_values = None if target is None else dict(zip(target.names, target.values, strict=True))
    empty = {names for names, record in stored.items() if record.is_empty}
    made = apply_rules(rules, infos, wanted_values, empty)
    wanted = {} if target is None else {join_name(names): names for names in target.names}
    records: dict[NamePath, LeafRecord] = {}
    casts: dict[NamePath, object] = {}
    computed: dict[NamePath, Apply | Part] = {}
    paths: dict[NamePath, KeyPath] = {}
    kept: set[NamePath] = set()
    for name, node in made.items():
        read = next(sources_of(node), None)
        own, path = _place_of(name, None if read is None else stored[read.names])
        names = wanted.get(name) or own
        match node:
            case Read():
                record = stored[node.names]
                is_same = names == record.names
                records[names] = (
                    record if is_same else structs.replace(record, path=path, names=names)
                )
                if node.dtype is not None:
                    casts[names] = node.dtype
            case Apply() | Part():
                computed[names], paths[names] = node, path
            case FromTarget():
                kept.add(names)
    return TransformedTree(stored, records, casts, computed, paths, frozenset(kept))


def select(
    transformed: TransformedTree, target: FlatTree | None, only: Patterns, skip: Patterns
) -> TransformedTree:
    """Select the wanted leaves of a transformed tree.

    Args:
        transformed: The available leaves.
        target: The target, None without one.
        only: Patterns of wanted leaves, None for all.
        skip: Patterns of unwanted leaves, None for none.

    Raises:
        TransformError: A pattern matches nothing, or no leaf is left.
    """
    known = dict.fromkeys([*transformed.names, *(target.names if target is not None else ())])
    chosen = set(known) if only is None else leaves_matching("only", only, known)
    if skip is not None:
        chosen -= leaves_matching("skip", skip, known)
    selected = structs.replace(
        transformed,
        records={names: record for names, record in transformed.records.items() if names in chosen},
        computed={names: node for names, node in transformed.computed.items() if names in chosen},
        kept=transformed.kept & chosen,
        left_out=frozenset(names for names in known if names not in chosen),
    )
    if not selected.records and not selected.computed:
        raise TransformError(
            f"No leaf is left by only {only!r} and skip {skip!r} of {len(known)}: "
            f"{_some(known)}. Change the patterns."
        )
    return selected


def _some(known: Iterable[NamePath]) -> str:
    return ", ".join(join_name(names) for names in islice(known, _SHOWN))


def apply_legacy_transforms(
    rules: LegacyRules,
    stored: Mapping[NamePath, LeafRecord],
    target: FlatTree,
    args: Mapping[NamePath, RestoreArgs],
) -> TransformedTree:
    """Apply Orbax's transforms to a stored tree.

    Args:
        rules: The transforms.
        stored: Its leaves by names.
        target: The target.
        args: Restore arguments of target leaves, which also apply to their sources.

    Raises:
        TransformError: The transforms do not fit the leaves.
    """
    leaves = {names: record for names, record in stored.items() if not record.is_empty}
    original = Original(
        {names: record.path for names, record in leaves.items()},
        [(r.path, EMPTY_TYPES.get(r.typestr, ())) for r in stored.values() if r.is_empty],
    )
    paths = dict(zip(target.names, target.paths, strict=True))
    wanted = [names for names in target.names if names not in target.empty_names]
    nodes = compile_legacy(rules, wanted, original, args, RestoreArgs())
    return TransformedTree(
        stored,
        {
            names: structs.replace(leaves[node.names], path=paths[names], names=names)
            for names, node in nodes.items()
            if isinstance(node, Read)
        },
        computed={n: node for n, node in nodes.items() if isinstance(node, Apply | Part)},
        paths=paths,
        kept=frozenset(n for n, node in nodes.items() if isinstance(node, FromTarget)),
        is_final=True,
    )


LegacyFunction = Callable[[object, object, object], tuple[object, object]]
"""Takes a target, a tree of `StoredLeaf` and a tree of `ParamInfo`; returns two trees like them in
the structure of the result."""


class StoredLeaf(Struct, frozen=True):
    """Description of a leaf for a `LegacyFunction`.

    Attributes:
        value_type: Type handler that wrote it, or the kind of an empty container.
        skip_deserialize: Whether it is an empty container, for which nothing is stored.
        write_shape: Shape of the part that one device wrote, for JAX arrays.
    """

    value_type: str
    skip_deserialize: bool = False
    write_shape: tuple[int, ...] | None = None


def apply_legacy_function(
    fn: LegacyFunction,
    item: object,
    stored: Mapping[NamePath, LeafRecord],
    infos: Mapping[NamePath, ParamInfo],
) -> tuple[TransformedTree, FlatTree]:
    """Apply Orbax's `legacy_transform_fn` to a stored tree; return also the result's tree.

    Args:
        fn: The function.
        item: The target, for the function only.
        stored: The tree's leaves by names.
        infos: Their places.

    Raises:
        TransformError: The function's two trees differ, or a leaf is not of this checkpoint.
    """
    leaves = [StoredLeaf(r.typestr, r.is_empty, r.write_shape) for r in stored.values()]
    paths = [record.path for record in stored.values()]
    structure, found = fn(
        item,
        build_tree(zip(paths, leaves, strict=True)),
        build_tree((record.path, infos[names]) for names, record in stored.items()),
    )
    target, wanted = flatten(structure), flatten(found)
    if target.names != wanted.names:
        raise TransformError(
            "legacy_transform_fn returned two trees of different structure: "
            f"{', '.join(map(format_path, target.names[:_SHOWN]))}; and "
            f"{', '.join(map(format_path, wanted.names[:_SHOWN]))}. Return a ParamInfo for every "
            "leaf."
        )
    by_place = {(infos[n].name, infos[n].parent_dir): r for n, r in stored.items()}
    records: dict[NamePath, LeafRecord] = {}
    for path, names, info in zip(target.paths, target.names, wanted.values, strict=True):
        if is_empty_node(info):
            continue
        is_info = isinstance(info, ParamInfo)
        record = by_place.get((info.name, info.parent_dir)) if is_info else None
        if not is_info or record is None:
            raise TransformError(
                f"{format_path(names)}: legacy_transform_fn returned {info!r}, expected the "
                "ParamInfo of a leaf of this checkpoint."
            )
        if not info.skip_deserialize:
            records[names] = structs.replace(record, path=path, names=names)
    return TransformedTree(stored, records), target


def _info(metadata: object) -> ArrayInfo:
    if isinstance(metadata, ArrayMetadata):
        return ArrayInfo(metadata.shape, metadata.dtype)
    return UNKNOWN


def _place_of(name: str, source: LeafRecord | None) -> tuple[NamePath, KeyPath]:
    """Return the keys of a new name.

    Trailing keys that it shares with its first source are of the same kind: a renamed list stays a
    list.
    """
    names = split_name(name)
    if source is None:
        return names, tuple(map(_dict_key, names))
    old = source.names
    if join_name(old) == name:
        return old, source.path
    most = min(len(names), len(old))
    common = next((n for n in range(most) if names[-1 - n] != old[-1 - n]), most)
    fresh = len(names) - common
    return names, (*map(_dict_key, names[:fresh]), *source.path[len(old) - common :])


_dict_key = functools.lru_cache(maxsize=4096)(DictKey)


def nodes_by_source(nodes: Mapping[NamePath, Node]) -> list[dict[NamePath, Node]]:
    """Group nodes so that no two groups read the same leaf."""
    above: dict[object, object] = {}
    """A forest of leaves and their results; all nodes of a tree belong in one group."""

    def root(place: object) -> object:
        while (next_one := above[place]) != place:
            above[place] = above[next_one]
            place = next_one
        return place

    def add(node: Node) -> object:
        place = node.names if isinstance(node, Read) else node_key(node)
        if place not in above:
            above[place] = place
            for part in inputs_of(node):
                above[root(add(part))] = root(place)
        return place

    groups: dict[object, dict[NamePath, Node]] = {}
    for names, place in [(names, add(node)) for names, node in nodes.items()]:
        groups.setdefault(root(place), {})[names] = nodes[names]
    return list(groups.values())
