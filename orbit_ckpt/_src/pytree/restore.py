"""Plan and run the restore of one tree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import jax
import numpy as np
from msgspec import Struct, structs

from orbit_ckpt._src.errors import FormatError, TransformError
from orbit_ckpt._src.formats.base import StoredTree
from orbit_ckpt._src.metadata.rich_types import decode_rich_types, has_rich_types
from orbit_ckpt._src.metadata.schema import UNKNOWN_TYPE, LeafRecord
from orbit_ckpt._src.pytree.align import Alignment, align, check_leaves, made_of, mismatch
from orbit_ckpt._src.pytree.arguments import (
    Args,
    adjust,
    casts_of,
    restore_args,
    same_kind,
    shardings_of,
)
from orbit_ckpt._src.pytree.in_memory import as_array_args, convert_value
from orbit_ckpt._src.pytree.lazy import lazy_leaves
from orbit_ckpt._src.pytree.request import RestoreRequest
from orbit_ckpt._src.pytree.stored import AS_SAVED, StoredLeaves, read_leaves
from orbit_ckpt._src.pytree.target import describe_change
from orbit_ckpt._src.pytree.view import (
    LegacyFunction,
    View,
    select,
    view_through,
    view_through_function,
    view_through_legacy,
)
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.transform.legacy import LegacyRules
from orbit_ckpt._src.transform.patterns import join_name
from orbit_ckpt._src.tree.diff import TreeDifference
from orbit_ckpt._src.tree.flatten import PLACEHOLDER, FlatTree, build_tree, flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import KeyPath, NamePath
from orbit_ckpt._src.type_handlers.base import LoadBatch
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry

_logger = logging.getLogger(__name__)

_SHOWN = 4
_LOGGED = 20


class TreePlan(Struct, frozen=True):
    """How a tree is restored; made from metadata alone.

    Attributes:
        request: What the caller wants.
        stored: The stored leaves.
        view: How rules make them look.
        target: The target taken apart, None if there is none.
        alignment: Which leaves of the result come from where.
        args: How leaves are restored, of those of which anything is said.
        casts: Leaves that patterns cast.
    """

    request: RestoreRequest
    stored: StoredLeaves
    view: View
    target: FlatTree | None
    alignment: Alignment
    args: Args
    casts: Mapping[NamePath, object] = {}

    @property
    def records(self) -> list[LeafRecord]:
        """The leaves that are read as they are."""
        is_read = self.alignment.is_read
        return [record for names, record in self.view.records.items() if is_read(names)]


async def plan_tree(
    source: StoredTree, batch: LoadBatch, registry: TypeHandlerRegistry, request: RestoreRequest
) -> TreePlan:
    """Return how a tree is restored; reads metadata only.

    Raises:
        TreeMismatchError: The target differs from the checkpoint; lists every difference.
        TransformError: Rules or patterns do not fit the checkpoint.
        UnsupportedLeafError: No handler is registered for some of the leaves.
    """
    target = None if request.target is None else flatten(request.target)
    stored = StoredLeaves(source, batch, registry)
    records = _records(source, target)
    if request.legacy is not None and target is not None:
        view, target, args = _through_legacy(stored, records, request, target)
        # only the transforms say what is read
        return TreePlan(request, stored, view, target, Alignment(None, {}, {}, {}), args)
    view = View(records, records)
    if request.transforms:
        known = (
            list(records.values()) if any(rule.needs_shapes for rule in request.transforms) else []
        )
        view = view_through(request.transforms, records, await stored.metadata(known), target)
    if request.only is not None or request.skip is not None:
        view = select(view, target, request.only, request.skip)
    alignment = align(view, target, request)
    if request.missing == "keep":
        _log_kept(source, alignment)
    if alignment.difference is not None and not request.typed:
        raise mismatch(alignment.difference)  # else told with what differs in shape or dtype
    args = restore_args(request, target, view)
    plan = TreePlan(request, stored, view, target, alignment, args)
    if target is None and not request.is_whole:  # fails now, if at all
        empty = {names: None for names, record in view.records.items() if record.is_empty}
        paths = _paths(plan)
        _assemble(paths, dict.fromkeys(paths, PLACEHOLDER) | empty)
    return await _with_patterns(plan)


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


async def _with_patterns(plan: TreePlan) -> TreePlan:
    """Return a plan with casts and shardings by patterns, its shapes and dtypes checked."""
    request, view, alignment = plan.request, plan.view, plan.alignment
    is_checked = request.typed and plan.target is not None
    found: dict[NamePath, object] = {}
    if is_checked or request.casts:
        found = await plan.stored.metadata(
            [record for record in plan.records if record.name not in plan.stored.source.inline]
        )
    casts = casts_of(request.casts, view, alignment, found) if request.casts else {}
    if is_checked:
        check_leaves(alignment, view, found, casts, request)
    shardings = {}
    if request.shardings is not None:
        shardings = shardings_of(
            request.shardings, view, alignment, plan.args, plan.stored.source.inline
        )
    return structs.replace(plan, args=adjust(plan.args, casts, shardings), casts=casts)


async def restore_tree(plan: TreePlan, *, rich_types: bool) -> object:
    """Read a tree.

    Args:
        plan: What to read.
        rich_types: Whether recorded tuples and namedtuples are rebuilt without a target.

    Raises:
        TreeMismatchError: A computed leaf does not fit the target.
        CorruptionError: Stored data is missing or damaged.
        TransformError: A function failed.
    """
    records = plan.records
    lazy = lazy_leaves(plan.stored, records, plan.args) if plan.request.lazy else {}
    others = [record for record in records if record.names not in lazy] if lazy else records
    values = await read_leaves(plan.stored, others, plan.args)
    values.update(lazy)
    if plan.target is not None and not plan.request.typed and plan.request.legacy is None:
        _log_other_shapes(plan.target, values)
    if plan.view.computed:
        values |= await _computed(plan)
    if plan.request.map_leaf is not None:
        values = {names: _mapped(plan.request.map_leaf, names, v) for names, v in values.items()}
    values |= {names: _filled(plan, names, v) for names, v in plan.alignment.filled.items()}
    target = plan.target
    if target is None and plan.request.is_whole:
        return rebuild(plan.stored.source, values, rich_types=rich_types)
    if target is None:
        return _assemble(_paths(plan), values)
    return target.unflatten(
        [
            value if names in target.empty_names or names not in values else values[names]
            for names, value in zip(target.names, target.values, strict=True)
        ]
    )


def _log_other_shapes(target: FlatTree, values: Mapping[NamePath, object]) -> None:
    """Log arrays of another shape than the leaf of a target that counts for its structure only."""
    others: list[str] = []
    for names, leaf in zip(target.names, target.values, strict=True):
        wanted: object = getattr(leaf, "shape", None)
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


def _paths(plan: TreePlan) -> dict[NamePath, KeyPath]:
    """Return where leaves sit that rules, patterns or a fallback have chosen without a target."""
    view = plan.view
    paths = {names: record.path for names, record in view.records.items()}
    paths |= {names: view.paths[names] for names in view.computed}
    return paths | {names: plan.alignment.paths[names] for names in plan.alignment.filled}


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


def _filled(plan: TreePlan, names: NamePath, value: object) -> object:
    """Return a leaf that is not read, as the caller wants it."""
    arg = plan.args.get(names)
    if plan.alignment.origins[names] != "fallback" or arg is None:
        return value
    return convert_value(plan.stored.batch, names, value, arg)


def _through_legacy(
    stored: StoredLeaves,
    records: Mapping[NamePath, LeafRecord],
    request: RestoreRequest,
    target: FlatTree,
) -> tuple[View, FlatTree, Args]:
    """Return what Orbax's transforms make of the stored tree, the result's tree, and its args."""
    if isinstance(request.legacy, LegacyRules):
        args = restore_args(request, target, View(records, {}))
        return view_through_legacy(request.legacy, records, target, args), target, args
    infos = dict(zip(records, stored.infos(list(records.values())), strict=True))
    fn = cast(LegacyFunction, request.legacy)
    view, target = view_through_function(fn, request.target, records, infos)
    return view, target, restore_args(request, target, view)


async def _computed(plan: TreePlan) -> dict[NamePath, object]:
    from orbit_ckpt._src.pytree.compute import compute_leaves  # noqa: PLC0415 - for some rules only

    alignment, request = plan.alignment, plan.request

    def place(names: NamePath, value: object, from_jax: bool) -> object:
        arg = plan.args.get(names)
        if alignment.wanted is not None and request.typed:
            is_cast = names in plan.casts
            _check_computed(names, value, alignment.wanted[names], request, is_cast=is_cast)
        is_host = isinstance(value, np.ndarray)
        dtype: object = getattr(value, "dtype", None)
        if arg is not None and names in plan.casts and not same_kind(dtype, arg.dtype):
            arg = replace(arg, dtype=None)
        if from_jax and is_host and (arg is None or arg.restore_type is None):
            arg = as_array_args(arg or AS_SAVED)
        return convert_value(plan.stored.batch, plan.view.paths[names], value, arg or AS_SAVED)

    wanted = {names for names in plan.view.computed if alignment.is_read(names)}
    return await compute_leaves(
        plan.view,
        wanted,
        partial(read_leaves, plan.stored),
        place,
        max_bytes=plan.stored.batch.reader.limiter.max_bytes,
    )


def _check_computed(
    names: NamePath, value: object, wanted: object, request: RestoreRequest, *, is_cast: bool
) -> None:
    """Check what a function has made, which is known only now, against the target's leaf."""
    if isinstance(value, np.ndarray | jax.Array):
        array = cast(jax.Array, value)
        dtype: object = getattr(wanted, "dtype", array.dtype) if is_cast else array.dtype
        made = made_of(array.shape, dtype)
        change = describe_change(wanted, made, strict=request.strict, casting=request.casting)
        if change:
            raise mismatch(TreeDifference([], [], {names: change}))


async def read_metadata(
    source: StoredTree, batch: LoadBatch, registry: TypeHandlerRegistry
) -> dict[NamePath, object]:
    """Return leaf metadata, empty containers as they are; no array is opened."""
    return await StoredLeaves(source, batch, registry).metadata(source.document.leaves)


def _records(source: StoredTree, target: FlatTree | None) -> dict[NamePath, LeafRecord]:
    """Return the stored leaves by names; if nothing records them, those of the target."""
    leaves = source.document.leaves
    if not leaves and target is not None and source.document.rich_types is None:
        leaves = [
            LeafRecord.at(path, UNKNOWN_TYPE, is_empty=is_empty_node(value))
            for path, value in zip(target.paths, target.values, strict=True)
        ]
    return {record.names: record for record in leaves}


def rebuild(source: StoredTree, values: Mapping[NamePath, object], *, rich_types: bool) -> object:
    """Return values in the recorded structure.

    Args:
        source: What records it.
        values: A value for every leaf and empty container, by names.
        rich_types: Whether tuples and namedtuples are rebuilt where recorded.

    Raises:
        FormatError: The recorded structure is not a tree.
    """
    leaves = source.document.leaves
    text = source.document.rich_types
    where = str(source.path)
    if rich_types and text is not None and (not leaves or has_rich_types(text)):
        kinds = source.details.key_kinds
        paths = {leaf.names: leaf.path for leaf in leaves if leaf.name in kinds}
        return decode_rich_types(text, where, values.__getitem__, paths)
    try:
        return build_tree(
            [(leaf.path, values[leaf.names]) for leaf in leaves], [leaf.names for leaf in leaves]
        )
    except ValueError as error:
        raise FormatError(f"{where}: the recorded structure is not a tree: {error}") from error
