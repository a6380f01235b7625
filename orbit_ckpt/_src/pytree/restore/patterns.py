"""Casts and shardings of leaves by pattern."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from orbit_ckpt._src.arrays.dtypes import as_dtype, is_numeric_array, is_prng_dtype
from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.metadata.schema import JAX_ARRAY, UNKNOWN_TYPE, LeafRecord
from orbit_ckpt._src.metadata.values import ArrayMetadata
from orbit_ckpt._src.pytree.restore.align import Alignment
from orbit_ckpt._src.pytree.restore.target import Args
from orbit_ckpt._src.pytree.restore.transformed import TransformedTree
from orbit_ckpt._src.transform.nodes import sources_of
from orbit_ckpt._src.transform.patterns import (
    Pattern,
    PatternMap,
    compile_pattern,
    explain_unmatched,
    join_name,
    names_matching,
)
from orbit_ckpt._src.tree.build import build_tree
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs
from orbit_ckpt._src.type_handlers.base import RestoreArgs, SaveArgs

_SHOWN = 20
_UNSAID = RestoreArgs()

T = TypeVar("T")


def casts_of(
    casts: PatternMap[object],
    transformed: TransformedTree,
    alignment: Alignment,
    found: Mapping[NamePath, object],
) -> dict[NamePath, object]:
    """Return the dtypes to which patterns cast leaves.

    Only numbers of the dtype's own kind are cast: an integer counter among parameters stays an
    integer when floating point is requested. Leaves of unknown dtype are included.

    Args:
        casts: Dtypes by patterns; the first that matches a leaf counts.
        transformed: The available leaves.
        alignment: Which leaves come from the fallback.
        found: Metadata of the leaves that are read unchanged.

    Raises:
        TransformError: A pattern matches nothing.
    """
    known = {names: found.get(names) for names in transformed.records}
    dtypes = {
        names: metadata.dtype
        for names, metadata in known.items()
        if isinstance(metadata, ArrayMetadata)
    }
    made = {names: node.info.dtype for names, node in transformed.computed.items()}
    fallback: dict[NamePath, object] = {
        names: getattr(value, "dtype")  # noqa: B009 - any array
        for names, value in alignment.filled.items()
        if alignment.origins[names] == "fallback" and hasattr(value, "dtype")
    }
    return _casts_of(casts, dtypes | made | fallback)


def _casts_of(
    casts: PatternMap[object], dtypes: Mapping[NamePath, object]
) -> dict[NamePath, object]:
    matched, unused = match_patterns(casts, dtypes)
    unused = [pattern for pattern in unused if pattern != "**"]
    if unused:
        raise TransformError(
            f"cast: {unused[0]!r} matches no array of {len(dtypes)}. "
            f"{explain_unmatched(unused[0], list(map(join_name, dtypes)))}"
        )
    return {
        names: as_dtype(dtype)
        for names, dtype in matched.items()
        if dtypes[names] is None or same_kind(dtypes[names], dtype)
    }


def casts_by_patterns(given: object) -> PatternMap[object]:
    """Normalize `cast=` to dtypes by patterns; a single one applies to all leaves.

    Raises:
        TypeError: It is something else.
    """
    is_map = isinstance(given, Mapping)
    casts = dict(cast(PatternMap[object], given)) if is_map else {"**": given}
    for pattern, dtype in casts.items():
        where = f"cast[{pattern!r}]" if is_map else "cast"
        if not _is_dtype(dtype):
            kind = ValueError if isinstance(given, str) else TypeError
            raise kind(
                f"{where} is {dtype!r}; give one of 'exact', 'same_kind', 'unsafe' for casts to a "
                "target's dtypes, a dtype such as jnp.bfloat16, or dtypes by patterns, "
                "{'params/**': jnp.bfloat16}."
            )
    return cast(PatternMap[object], casts)


def _is_dtype(value: object) -> bool:
    try:
        as_dtype(value)
    except (TypeError, ValueError):
        return False
    return value is not None  # numpy's name for float64


def cast_on_save(tree: object, casts: PatternMap[object]) -> object:
    """Return save arguments that cast leaves by patterns, as a restore does.

    Raises:
        TransformError: A pattern matches nothing.
    """
    flat = flatten(tree)
    arrays: dict[NamePath, object] = {
        names: getattr(value, "dtype")  # noqa: B009 - any array
        for names, value in zip(flat.names, flat.values, strict=True)
        if hasattr(value, "dtype")
    }
    wanted = _casts_of(casts, arrays)
    return build_tree(
        [
            (path, SaveArgs(dtype=wanted[n]))
            for path, n in zip(flat.paths, flat.names, strict=True)
            if n in wanted
        ]
    )


def same_kind(dtype: object, other: object) -> bool:
    """Return whether two dtypes hold the same kind of number."""
    if dtype is None or is_prng_dtype(dtype):
        return False
    one, two = as_dtype(dtype), as_dtype(other)
    kinds = (jnp.floating, jnp.complexfloating, jnp.integer)
    return any(jnp.issubdtype(one, kind) and jnp.issubdtype(two, kind) for kind in kinds)


def shardings_of(
    shardings: PatternMap[jax.sharding.Sharding],
    transformed: TransformedTree,
    alignment: Alignment,
    args: Mapping[NamePath, RestoreArgs],
    inline: Mapping[str, object],
) -> dict[NamePath, jax.sharding.Sharding]:
    """Return the shardings that patterns give to JAX arrays.

    These are the arrays that were saved as such or without a recorded framework, unless the target
    wants numpy's, and those that the target wants as JAX's.

    Args:
        shardings: Shardings by patterns.
        transformed: The available leaves.
        alignment: The wanted leaves.
        args: How they are restored.
        inline: Values that are not read through the store, by storage name.

    Raises:
        TransformError: No pattern matches a JAX array.
    """
    stored = {names: {transformed.records[names]} for names in transformed.records} | {
        names: {transformed.stored[read.names] for read in sources_of(node)}
        for names, node in transformed.computed.items()
    }

    def is_jax(record: LeafRecord) -> bool:
        if record.name in inline:
            return is_numeric_array(inline[record.name])
        return record.typestr in (JAX_ARRAY, UNKNOWN_TYPE)

    def becomes_jax(names: NamePath, records: Iterable[LeafRecord]) -> bool:
        arg = args.get(names, _UNSAID)
        is_abstract = isinstance(arg, ArrayRestoreArgs)
        if arg.restore_type is None:
            return is_abstract or any(map(is_jax, records))
        return arg.restore_type is jax.Array

    arrays = {
        names
        for names, records in stored.items()
        if alignment.is_read(names) and becomes_jax(names, records)
    }
    arrays |= {
        names
        for names, value in alignment.filled.items()
        if alignment.origins[names] == "fallback"
        and (isinstance(value, jax.Array) or isinstance(args.get(names), ArrayRestoreArgs))
    }
    found, _ = match_patterns(shardings, arrays)
    known = (*transformed.names, *alignment.filled)
    missing = [join_name(names) for names in known if names in arrays and names not in found]
    if missing:
        raise TransformError(
            f"sharding: no pattern matches {len(missing)} JAX arrays: "
            f'{", ".join(missing[:_SHOWN])}. Add one that does; "**" matches all. Rules that are '
            "searched for, as in eFormer, need partition(mesh, rules, match='search')."
        )
    return found


def left_to_last(
    rules: PatternMap[jax.sharding.Sharding], arrays: Collection[NamePath]
) -> Collection[NamePath]:
    """Return the arrays that match only a final rule, for all names, that replicates.

    Args:
        rules: Shardings by patterns. A single rule is deliberate and returns no arrays.
        arrays: The arrays with shardings.
    """
    others = list(rules.items())
    last, sharding = others.pop() if others else ("", None)
    is_for_all = compile_pattern(last).fullmatch(_NO_NAME) is not None
    if not others or not is_for_all or sharding is None:
        return ()
    if not sharding.is_fully_replicated or len(sharding.device_set) == 1:
        return ()
    matched, _ = match_patterns(dict(others), arrays)
    return [names for names in arrays if names not in matched]


_NO_NAME = "\0/\0"
"""A name of no leaf, which only patterns for all names match."""


def match_patterns(
    rules: PatternMap[T], known: Iterable[NamePath]
) -> tuple[dict[NamePath, T], list[Pattern]]:
    """Return the value of each leaf's first matching pattern, and patterns without a match."""
    by_name: dict[str, list[NamePath]] = {}
    for names in known:
        by_name.setdefault(join_name(names), []).append(names)
    unused: list[Pattern] = []
    found: dict[NamePath, T] = {}
    for pattern, value in rules.items():
        matched = names_matching(pattern, by_name)
        if not matched:
            unused.append(pattern)
        for name in matched:
            for names in by_name[name]:
                found.setdefault(names, value)
    return found, unused


def adjust(
    args: Args,
    casts: Mapping[NamePath, object],
    shardings: Mapping[NamePath, jax.sharding.Sharding],
) -> Args:
    """Apply the dtypes and shardings of patterns to arguments."""
    changed = dict(args)
    for names in {**casts, **shardings}:
        arg = changed.get(names, RestoreArgs())
        dtype = casts.get(names, arg.dtype)
        if names not in shardings:
            changed[names] = _replace(arg, dtype=dtype)
        elif isinstance(arg, ArrayRestoreArgs):
            changed[names] = _replace(
                arg,
                restore_type=jax.Array,
                dtype=dtype,
                sharding=shardings[names],
                mesh=None,
                mesh_axes=None,
            )
        else:
            changed[names] = ArrayRestoreArgs(dtype=dtype, sharding=shardings[names])
    return changed


def _replace(arg: RestoreArgs, **changes: object) -> RestoreArgs:
    return dataclasses.replace(arg, **cast(Any, changes))
