"""Resolve and run the restore of one tree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import jax
import numpy as np
from msgspec import Struct, structs

from orbit_ckpt._src.arrays.dtypes import is_host_array
from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.metadata.schema import UNKNOWN_TYPE, LeafRecord
from orbit_ckpt._src.pytree.describe import rebuild
from orbit_ckpt._src.pytree.restore.align import (
    Alignment,
    align,
    check_leaves,
    describe_change,
    made_of,
    mismatch,
)
from orbit_ckpt._src.pytree.restore.convert import as_array_args, convert_value
from orbit_ckpt._src.pytree.restore.leaves import (
    AS_SAVED,
    StoredLeaves,
    lazy_leaves,
    read_leaves,
)
from orbit_ckpt._src.pytree.restore.patterns import (
    adjust,
    casts_of,
    left_to_last,
    same_kind,
    shardings_of,
)
from orbit_ckpt._src.pytree.restore.target import Args, RestoreOptions, requested_args
from orbit_ckpt._src.pytree.restore.tie import tie_leaves
from orbit_ckpt._src.pytree.restore.transformed import (
    LegacyFunction,
    TransformedTree,
    apply_legacy_function,
    apply_legacy_transforms,
    apply_transforms,
    select,
)
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.transform.legacy import LegacyRules
from orbit_ckpt._src.transform.patterns import join_name
from orbit_ckpt._src.tree.build import PLACEHOLDER, build_tree
from orbit_ckpt._src.tree.diff import TreeDifference
from orbit_ckpt._src.tree.flatten import FlatTree, flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import KeyPath, NamePath
from orbit_ckpt._src.type_handlers.base import LoadBatch
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry

_logger = logging.getLogger(__name__)

_SHOWN = 4
_LOGGED = 20
_LARGE_BYTES = 1 << 20
"""Smallest size of an array to log if no rule shards it."""


class ResolvedRestore(Struct, frozen=True):
    """How a tree is restored, from metadata alone.

    Attributes:
        options: The caller's options.
        stored: The stored leaves.
        transformed: The leaves after rules.
        target: The flattened target, None without one.
        alignment: The origin of each leaf of the result.
        args: Restore arguments of the leaves that have any.
        casts: Leaves that patterns cast.
        unsharded: Arrays that the last rule for shardings replicates, since no other matches.
    """

    options: RestoreOptions
    stored: StoredLeaves
    transformed: TransformedTree
    target: FlatTree | None
    alignment: Alignment
    args: Args
    casts: Mapping[NamePath, object] = {}
    unsharded: Collection[NamePath] = ()

    @property
    def records(self) -> list[LeafRecord]:
        """The leaves that are read unchanged."""
        return self.alignment.read(self.transformed.records)


async def resolve_restore(
    source: StoredTree, batch: LoadBatch, registry: TypeHandlerRegistry, options: RestoreOptions
) -> ResolvedRestore:
    """Plan how a tree is restored; reads metadata only.

    Raises:
        TreeMismatchError: The target differs from the checkpoint; lists every difference.
        TransformError: Rules or patterns do not fit the checkpoint.
        UnsupportedLeafError: No handler is registered for some of the leaves.
    """
    target = None if options.target is None else flatten(options.target)
    stored = StoredLeaves(source, batch, registry)
    records = _records(source, target)
    if options.legacy is not None and target is not None:
        transformed, target, args = _through_legacy(stored, records, options, target)
        # only the transforms determine what is read
        alignment = Alignment(None, {}, {}, {})
        return ResolvedRestore(options, stored, transformed, target, alignment, args)
    transformed = TransformedTree(records, records)
    if options.transforms:
        needs_shapes = any(rule.needs_shapes for rule in options.transforms)
        found = await stored.metadata(list(records.values()) if needs_shapes else [])
        transformed = apply_transforms(options.transforms, records, found, target)
    if options.only is not None or options.skip is not None:
        transformed = select(transformed, target, options.only, options.skip)
    alignment = align(transformed, target, options)
    if options.missing in ("keep", "as_given"):
        _log_kept(source, alignment)
    if alignment.difference is not None and not options.match_leaf_types:
        raise mismatch(
            alignment.difference, options.hints
        )  # else reported with differing shapes, dtypes
    args = requested_args(options, target, transformed)
    resolved = ResolvedRestore(options, stored, transformed, target, alignment, args)
    if target is None and not options.is_whole:  # fails now, if at all
        empty = {names: None for names, record in transformed.records.items() if record.is_empty}
        paths = _paths(resolved)
        _assemble(paths, dict.fromkeys(paths, PLACEHOLDER) | empty)
    return await _with_patterns(resolved)


def _log_kept(source: StoredTree, alignment: Alignment) -> None:
    """Log which leaves of the target a partial restore keeps because the checkpoint lacks them."""
    kept = [join_name(names) for names in alignment.filled]
    if kept:
        _logger.warning(
            "%s lacks %d leaves of the target, which keep their values: %s",
            source.path,
            len(kept),
            shorten_list(kept, _LOGGED),
        )


async def _with_patterns(resolved: ResolvedRestore) -> ResolvedRestore:
    """Add casts and shardings by patterns; check shapes and dtypes against the target."""
    options, transformed, alignment = resolved.options, resolved.transformed, resolved.alignment
    inline = resolved.stored.source.inline
    is_checked = options.match_leaf_types and resolved.target is not None
    found: dict[NamePath, object] = {}
    if is_checked or options.cast_rules:
        records = [record for record in resolved.records if record.name not in inline]
        if not options.cast_rules and not transformed.casts:
            records = resolved.stored.unlike(records, alignment.wanted or {})
        found = await resolved.stored.described(records)
    casts: Mapping[NamePath, object] = {}
    if options.cast_rules:
        casts = casts_of(options.cast_rules, transformed, alignment, found)
    if is_checked:
        check_leaves(alignment, transformed, found, casts, options)
    shardings = {}
    if options.sharding_rules is not None:
        shardings = shardings_of(
            options.sharding_rules, transformed, alignment, resolved.args, inline
        )
    if not casts and not shardings:
        return resolved
    unsharded = left_to_last(options.sharding_rules or {}, shardings)
    args = adjust(resolved.args, casts, shardings)
    return structs.replace(resolved, args=args, casts=casts, unsharded=unsharded)


async def restore_tree(resolved: ResolvedRestore, *, rich_types: bool) -> object:
    """Read a tree.

    Args:
        resolved: What to read.
        rich_types: Whether recorded tuples and namedtuples are rebuilt without a target.

    Raises:
        TreeMismatchError: A computed leaf does not fit the target.
        CorruptionError: Stored data is missing or damaged.
        TransformError: A function failed.
    """
    records = resolved.records
    lazy = lazy_leaves(resolved.stored, records, resolved.args) if resolved.options.lazy else {}
    others = [record for record in records if record.names not in lazy] if lazy else records
    values = await read_leaves(resolved.stored, others, resolved.args)
    values.update(lazy)
    _log_unsharded(resolved, values)
    target, options = resolved.target, resolved.options
    if target is not None and not options.match_leaf_types and options.legacy is None:
        _log_other_shapes(target, values)
    if resolved.transformed.computed:
        values |= await _computed(resolved)
    if options.map_leaf is not None:
        values = {names: _mapped(options.map_leaf, names, v) for names, v in values.items()}
    values |= {names: _filled(resolved, names, v) for names, v in resolved.alignment.filled.items()}
    if target is not None and options.tied:
        values = tie_leaves(target, values, options.hints)
    if target is None and options.is_whole:
        return rebuild(resolved.stored.source, values, rich_types=rich_types)
    if target is None:
        return _assemble(_paths(resolved), values)
    return target.unflatten(
        [
            value if names in target.empty_names or names not in values else values[names]
            for names, value in zip(target.names, target.values, strict=True)
        ]
    )


def _log_unsharded(resolved: ResolvedRestore, values: Mapping[NamePath, object]) -> None:
    """Log large arrays that every device holds whole because no rule shards them."""
    sizes = {names: getattr(values.get(names), "nbytes", 0) for names in resolved.unsharded}
    large = sorted(join_name(names) for names, n in sizes.items() if n >= _LARGE_BYTES)
    if large:
        _logger.warning(
            "%s: %d arrays of 1 MiB or more match only the last rule of sharding=, which gives "
            "every device a whole copy: %s. Add rules for them; '**/kernel/**' also matches what "
            "optimizers keep below a parameter, such as kernel/m.",
            resolved.stored.source.path,
            len(large),
            shorten_list(large, _LOGGED),
        )


def _log_other_shapes(target: FlatTree, values: Mapping[NamePath, object]) -> None:
    """Log arrays whose shape differs from a target that counts for its structure only."""
    others: list[str] = []
    for names, leaf in zip(target.names, target.values, strict=True):
        wanted: object = None if isinstance(leaf, type) else getattr(leaf, "shape", None)
        restored: object = getattr(values.get(names), "shape", wanted)
        if wanted and wanted != restored:
            others.append(f"{join_name(names)}: {wanted}, restored {restored}")
    if others:
        _logger.warning(
            "%d arrays of the target have another shape than the restored ones, because only its "
            "structure counts: %s. To have shapes checked, give restore_args of "
            "construct_restore_args(target), or use StandardRestore.",
            len(others),
            "; ".join(others[:_SHOWN]) + ("; ..." if len(others) > _SHOWN else ""),
        )


def _paths(resolved: ResolvedRestore) -> dict[NamePath, KeyPath]:
    """Return the paths of leaves that rules, patterns or a fallback select without a target."""
    transformed = resolved.transformed
    paths = {names: record.path for names, record in transformed.records.items()}
    paths |= {names: transformed.paths[names] for names in transformed.computed}
    return paths | {names: resolved.alignment.paths[names] for names in resolved.alignment.filled}


def _assemble(paths: Mapping[NamePath, KeyPath], values: Mapping[NamePath, object]) -> object:
    try:
        leaves = [(path, values[names]) for names, path in paths.items()]
        return build_tree(leaves, paths, lenient=True)
    except ValueError as error:
        raise TransformError(
            f"The leaves do not make a tree: {error}. Rename some of them, or give a target."
        ) from error


def _mapped(fn: Callable[[object, str], object], names: NamePath, value: object) -> object:
    if is_empty_node(value):
        return value
    name = join_name(names)
    try:
        return fn(value, name)
    except Exception as error:  # a user's function may raise anything; raised again
        raise TransformError(f"{name}: map_leaf failed: {type(error).__name__}: {error}") from error


def _filled(resolved: ResolvedRestore, names: NamePath, value: object) -> object:
    """Return a leaf that is not read, converted as requested."""
    arg = resolved.args.get(names)
    if resolved.alignment.origins[names] != "fallback" or arg is None:
        return value
    return convert_value(resolved.stored.batch, names, value, arg)


def _through_legacy(
    stored: StoredLeaves,
    records: Mapping[NamePath, LeafRecord],
    options: RestoreOptions,
    target: FlatTree,
) -> tuple[TransformedTree, FlatTree, Args]:
    """Return the tree after Orbax's transforms, the result's tree, and its arguments."""
    if isinstance(options.legacy, LegacyRules):
        args = requested_args(options, target, TransformedTree(records, {}))
        return apply_legacy_transforms(options.legacy, records, target, args), target, args
    infos = dict(zip(records, stored.infos(list(records.values())), strict=True))
    fn = cast(LegacyFunction, options.legacy)
    transformed, target = apply_legacy_function(fn, options.target, records, infos)
    return transformed, target, requested_args(options, target, transformed)


async def _computed(resolved: ResolvedRestore) -> dict[NamePath, object]:
    from orbit_ckpt._src.pytree.restore.compute import compute_leaves  # noqa: PLC0415 - for some rules only

    alignment, options = resolved.alignment, resolved.options

    def place(names: NamePath, value: object, from_jax: bool) -> object:
        arg = resolved.args.get(names)
        if alignment.wanted is not None and options.match_leaf_types:
            is_cast = names in resolved.casts
            _check_computed(names, value, alignment.wanted[names], options, is_cast=is_cast)
        is_host = isinstance(value, np.ndarray)
        dtype: object = getattr(value, "dtype", None)
        if arg is not None and names in resolved.casts and not same_kind(dtype, arg.dtype):
            arg = replace(arg, dtype=None)
        if from_jax and is_host and (arg is None or arg.restore_type is None):
            arg = as_array_args(arg or AS_SAVED)
        path = resolved.transformed.paths[names]
        return convert_value(resolved.stored.batch, path, value, arg or AS_SAVED)

    wanted = {names for names in resolved.transformed.computed if alignment.is_read(names)}
    return await compute_leaves(
        resolved.transformed,
        wanted,
        partial(read_leaves, resolved.stored),
        place,
        max_bytes=resolved.stored.batch.reader.limiter.max_bytes,
    )


def _check_computed(
    names: NamePath, value: object, wanted: object, options: RestoreOptions, *, is_cast: bool
) -> None:
    """Check a function's result against the target's leaf."""
    if is_host_array(value) or isinstance(value, jax.Array):
        dtype: object = getattr(wanted, "dtype", value.dtype) if is_cast else value.dtype
        made = made_of(value.shape, dtype)
        policy = options.cast_policy
        change = describe_change(wanted, made, strict=options.strict, cast_policy=policy)
        if change:
            raise mismatch(TreeDifference([], [], {names: change}), options.hints)


def _records(source: StoredTree, target: FlatTree | None) -> dict[NamePath, LeafRecord]:
    """Return the stored leaves by names; if nothing records them, the target's."""
    leaves = source.document.leaves
    if not leaves and target is not None and source.document.rich_types is None:
        leaves = [
            LeafRecord.at(path, UNKNOWN_TYPE, is_empty=is_empty_node(value))
            for path, value in zip(target.paths, target.values, strict=True)
        ]
    return {record.names: record for record in leaves}
