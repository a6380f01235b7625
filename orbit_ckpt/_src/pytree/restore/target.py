"""The options of a restore, and restore arguments from them and the leaves of a target."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast

import jax
import numpy as np
from msgspec import Struct, field

from orbit_ckpt._src.arrays.dtypes import (
    DType,
    as_dtype,
    is_prng_dtype,
    python_scalar,
)
from orbit_ckpt._src.arrays.recorded_sharding import (
    NamedShardingMetadata,
    ShardingMetadata,
    SingleDeviceShardingMetadata,
)
from orbit_ckpt._src.arrays.sharding import as_sharding
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.metadata.values import (
    ArrayMetadata,
    Metadata,
    ScalarMetadata,
    StringMetadata,
    TreeMetadata,
)
from orbit_ckpt._src.pytree.restore.hints import MismatchHints
from orbit_ckpt._src.pytree.restore.transformed import LegacyFunction, TransformedTree
from orbit_ckpt._src.runtime.checks import as_flag
from orbit_ckpt._src.text import warn_set
from orbit_ckpt._src.transform.engine import Rule
from orbit_ckpt._src.transform.legacy import LegacyRules
from orbit_ckpt._src.transform.patterns import Pattern, PatternMap, Patterns
from orbit_ckpt._src.tree.build import PLACEHOLDER
from orbit_ckpt._src.tree.diff import nearest_names
from orbit_ckpt._src.tree.flatten import (
    FlatTree,
    ends_here,
    flatten,
    is_empty_node,
    is_leaf_node,
)
from orbit_ckpt._src.tree.keypath import NamePath, format_path
from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs
from orbit_ckpt._src.type_handlers.base import RestoreArgs
from orbit_ckpt._src.type_handlers.capabilities import LeafNode
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyHostArray

Casting = Literal["exact", "same_kind", "unsafe"]
"""The allowed casts: none; within a kind of number or to a more general one; all."""
Missing = Literal["error", "target", "keep", "as_given", "skip"]
"""`keep` is `target` with a log entry, and ignores arguments for leaves that do not exist.
`as_given` is `keep` also for leaves that only describe a value."""
Unexpected = Literal["error", "ignore"]


_JAX_TYPES = (jax.Array, jax.ShapeDtypeStruct, LazyArray)
_PYTHON_TYPES = (bool, int, float, complex, str, bytes)
Args = dict[NamePath, RestoreArgs]


class RestoreOptions(Struct, frozen=True):
    """The options of a tree's restore.

    Attributes:
        target: Tree whose structure the result has; PLACEHOLDER leaves are not read. None for the
            recorded structure.
        restore_args: Tree of `RestoreArgs`, or of leaves that imply them, like the result.
        match_leaf_types: Whether the target's leaves determine type, shape, dtype and sharding;
            else only its structure counts.
        missing: How to fill leaves of the target that the checkpoint lacks.
        unexpected: How to treat leaves of the checkpoint that the target lacks.
        allow_empty: Whether leaves of the target may be empty containers or None in the checkpoint,
            which are then returned.
        fallback: Tree with leaves for those that the checkpoint lacks.
        cast_policy: Which casts to the dtypes of such a target are allowed.
        cast_rules: Dtypes by patterns; leaves of another kind of number are not cast.
        sharding_rules: Shardings of JAX arrays by patterns; the first match counts, and one must
            match.
        map_leaf: Called with every restored leaf and its name; its result replaces the leaf.
        strict: Whether a typed target's shapes must be the stored ones.
        transforms: Rules that transform leaves during the restore.
        legacy: The same in Orbax's forms, which need a target; not with `transforms`.
        only: Patterns of the leaves to restore, None for all.
        skip: Patterns of leaves to leave out.
        lazy: Whether array leaves stay in storage, as `LazyArray`.
        share_reads: Whether processes that need the same part of an array divide its reading.
        reader: The format to read as, None to detect it.
        hints: What the error about another tree advises.
    """

    target: object = None
    restore_args: object = None
    match_leaf_types: bool = False
    missing: Missing = "error"
    unexpected: Unexpected = "error"
    allow_empty: bool = False
    fallback: object = None
    cast_policy: Casting = "same_kind"
    cast_rules: PatternMap[object] = field(default_factory=dict[Pattern, object])
    sharding_rules: PatternMap[jax.sharding.Sharding] | None = None
    map_leaf: Callable[[object, str], object] | None = None
    strict: bool = True
    transforms: Sequence[Rule] = ()
    legacy: LegacyRules | LegacyFunction | None = None
    only: Patterns = None
    skip: Patterns = None
    lazy: bool = False
    share_reads: bool = False
    reader: Format | None = None
    hints: MismatchHints = MismatchHints()

    @property
    def is_plain(self) -> bool:
        """Whether the result is the stored tree unchanged."""
        return (
            self.is_whole
            and not (self.lazy or self.cast_rules)
            and self.target is None
            and self.restore_args is None
            and self.sharding_rules is None
            and self.map_leaf is None
            and self.legacy is None
        )

    @property
    def is_whole(self) -> bool:
        """Whether the result has all leaves of the stored tree, under their names."""
        unset = (self.only, self.skip, self.fallback)
        return not self.transforms and all(option is None for option in unset)


class ArrayLike(Protocol):
    shape: Shape
    dtype: DType


def construct_restore_args(
    target: object,
    sharding_tree: object = None,
    set_global_shape: bool = True,
    support_layout: bool = False,
    strict: bool = True,
) -> object:
    """Return a tree of `RestoreArgs` that restores leaves like those of a target.

    Args:
        target: A tree of arrays, `jax.ShapeDtypeStruct`, scalars, strings or leaf metadata. An
            abstract array without a sharding is a numpy array if that was saved.
        sharding_tree: Shardings to use instead of those of the target's leaves, in its structure.
        set_global_shape: Whether the target's shapes are asked for.
        support_layout: Does nothing here.
        strict: Whether a different stored shape is an error; else arrays are padded or cut.

    Raises:
        TypeError: A leaf of `sharding_tree` for a JAX array is no sharding.
        ValueError: `sharding_tree` does not have the target's structure.
    """
    unused = {"support_layout": (support_layout, False, "arrays have the default layout")}
    warn_set("construct_restore_args", unused)
    if isinstance(target, TreeMetadata):
        target = target.tree
    flat = flatten(target)
    shardings: list[object] = [None] * len(flat.values)
    if sharding_tree is not None:
        shardings = jax.tree_util.tree_flatten(sharding_tree, is_leaf=ends_here)[0]
        if len(shardings) != len(flat.values):
            raise ValueError(
                f"sharding_tree has {len(shardings)} leaves, the target {len(flat.values)}; give "
                "one sharding per leaf, anything for leaves that are no JAX arrays."
            )
    options: dict[str, Any] = {
        "set_global_shape": as_flag("set_global_shape", set_global_shape),
        "strict": as_flag("strict", strict),
    }
    args: list[object] = []
    for names, leaf, sharding in zip(flat.names, flat.values, shardings, strict=True):
        if is_empty_node(leaf) or leaf is PLACEHOLDER:
            args.append(leaf)
            continue
        try:
            if isinstance(leaf, Metadata):
                args.append(_metadata_args(leaf, sharding=sharding, **options))
            else:
                args.append(restore_args_of(leaf, sharding=sharding, **options))
        except TypeError as error:
            source = "target" if sharding is None else "sharding_tree"
            raise TypeError(f"{source}: {format_path(names)}: {error}") from error
    return flat.unflatten(args)


def restore_args_of(
    leaf: object,
    *,
    sharding: object = None,
    set_global_shape: bool = True,
    strict: bool = True,
) -> RestoreArgs:
    """Return the arguments that restore a leaf like the one given.

    Args:
        leaf: A JAX array, `jax.ShapeDtypeStruct`, numpy array, lazy array, Python or numpy scalar,
            string, leaf metadata of a checkpoint, `LeafNode`, `RestoreArgs`, or a type. Leaves of
            other types are restored as they were saved.
        sharding: Sharding to use instead of the leaf's own.
        set_global_shape: Whether the leaf's shape is asked for.
        strict: Whether a different stored shape is an error.
    """
    if is_leaf_node(leaf):
        leaf = cast(LeafNode, leaf).restore_args()
    if isinstance(leaf, RestoreArgs):
        return leaf
    if isinstance(leaf, type):
        return RestoreArgs(restore_type=leaf)
    if isinstance(leaf, _JAX_TYPES) and not isinstance(leaf, LazyHostArray):
        own = cast(object, getattr(leaf, "sharding", None))
        return _array_args(leaf, sharding or own, set_global_shape=set_global_shape, strict=strict)
    if isinstance(leaf, Metadata):
        return _as_saved(leaf, sharding)
    if isinstance(leaf, np.character):
        return RestoreArgs()  # numpy text, whose dtype depends on its length
    return RestoreArgs(restore_type=_host_type(leaf), dtype=_host_dtype(leaf))


def _as_saved(leaf: Metadata, sharding: object) -> RestoreArgs:
    """Return arguments that restore a leaf as it was saved, JAX arrays on a given sharding."""
    if not isinstance(leaf, ArrayMetadata) or not _is_of_jax(leaf):
        return RestoreArgs()
    return ArrayRestoreArgs(sharding=inner_sharding(sharding or leaf.sharding))


def _metadata_args(
    leaf: Metadata, *, sharding: object, set_global_shape: bool, strict: bool
) -> RestoreArgs:
    """Return arguments with the recorded type, dtype, shape and sharding."""
    if isinstance(leaf, StringMetadata):
        return RestoreArgs(restore_type=str)
    if isinstance(leaf, ScalarMetadata):
        if leaf.dtype.kind in "mM":
            return RestoreArgs()  # a numpy date, for which Python has no type
        scalar_type = type(python_scalar(np.zeros((), leaf.dtype)))
        return RestoreArgs(restore_type=scalar_type, dtype=leaf.dtype)
    if not isinstance(leaf, ArrayMetadata):
        return RestoreArgs()
    if sharding is not None or _is_of_jax(leaf):
        arg = _array_args(
            leaf, sharding or leaf.sharding, set_global_shape=set_global_shape, strict=strict
        )
        return dataclasses.replace(arg, restore_type=jax.Array)
    may_be_bytes = leaf.dtype == np.uint8 and len(leaf.shape) == 1
    return RestoreArgs(restore_type=None if may_be_bytes else np.ndarray, dtype=leaf.dtype)


def _is_of_jax(leaf: ArrayMetadata) -> bool:
    return leaf.storage is not None and leaf.storage.write_shape is not None


def _host_type(leaf: object) -> type | None:
    """Return the type to restore a leaf as if not a JAX array, None for the saved type."""
    if isinstance(leaf, np.ndarray | LazyHostArray):
        return np.ndarray
    if isinstance(leaf, np.generic):
        return type(cast(object, leaf))
    return next((t for t in _PYTHON_TYPES if isinstance(leaf, t)), None)


def _host_dtype(leaf: object) -> DType | None:
    is_numpy = isinstance(leaf, np.ndarray | np.generic | LazyHostArray)
    return cast(ArrayLike, leaf).dtype if is_numpy else None


def _array_args(
    leaf: object, sharding: object, *, set_global_shape: bool, strict: bool
) -> ArrayRestoreArgs:
    array = cast(ArrayLike, leaf)
    if is_prng_dtype(array.dtype):
        return ArrayRestoreArgs(sharding=inner_sharding(sharding))
    # without a sharding it need not be JAX's: `jax.eval_shape` accepts numpy arrays
    is_abstract = sharding is None and strict
    return ArrayRestoreArgs(
        restore_type=None if is_abstract else jax.Array,
        dtype=array.dtype,
        sharding=inner_sharding(sharding),
        global_shape=tuple(array.shape) if set_global_shape else None,
        strict=strict,
    )


def inner_sharding(sharding: object) -> jax.sharding.Sharding | ShardingMetadata | None:
    """Return the sharding of a leaf, which its memory layout may wrap."""
    if sharding is None or isinstance(
        sharding, NamedShardingMetadata | SingleDeviceShardingMetadata
    ):
        return sharding
    return as_sharding(sharding, "sharding")


def is_abstract(leaf: object) -> bool:
    """Return whether a target leaf only describes the wanted value."""
    return isinstance(leaf, jax.ShapeDtypeStruct | type | RestoreArgs | Metadata)


def requested_args(
    options: RestoreOptions, target: FlatTree | None, transformed: TransformedTree
) -> Args:
    """Return the restore arguments of the leaves that have any, by names.

    Raises:
        ValueError: Some arguments are for a leaf that does not exist.
    """
    args: Args = {names: RestoreArgs(dtype=dtype) for names, dtype in transformed.casts.items()}
    if options.match_leaf_types and target is not None:
        args |= _args_of(target.names, target.values, strict=options.strict)
    if options.restore_args is None:
        return args
    values = None if target is None else target.values_of(options.restore_args)
    if target is not None and values is not None:
        return args | _completed(
            _args_of(target.names, values, strict=options.strict), options, target
        )
    flat = flatten(options.restore_args)
    known = {*transformed.names, *(target.names if target is not None else ())}
    added = _args_of(flat.names, flat.values, strict=options.strict)
    unknown = next((names for names in added if names not in known), None)
    if options.missing in ("keep", "as_given"):
        return args | {names: arg for names, arg in added.items() if names in known}
    if unknown is not None:
        near = nearest_names(format_path(unknown), [format_path(p) for p in known])
        raise ValueError(
            f"restore_args: {format_path(unknown)}: there is no such leaf to restore"
            + (f"; did you mean {' or '.join(near)}?" if near else ".")
            + " Give RestoreArgs for leaves of the checkpoint, or of `item`."
        )
    return args | (added if target is None else _completed(added, options, target))


_ARRAYS = (jax.Array, jax.ShapeDtypeStruct)


def _args_of(names: Sequence[NamePath], leaves: Sequence[object], *, strict: bool) -> Args:
    """Return the restore arguments that leaves of a target imply; equal arrays share theirs."""
    args: Args = {}
    shared: dict[object, RestoreArgs] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if leaf is PLACEHOLDER or is_empty_node(leaf):
            continue
        kind: object = None
        if type(leaf) is np.ndarray:
            kind = leaf.dtype
        elif isinstance(leaf, _ARRAYS):
            kind = (leaf.shape, leaf.dtype, leaf.sharding)
        try:
            arg = shared.get(kind) or restore_args_of(leaf, strict=strict)
        except TypeError as error:
            raise TypeError(f"{format_path(name)}: {error}") from error
        if kind is not None:
            shared[kind] = arg
        args[name] = arg
    return args


def _completed(args: Args, options: RestoreOptions, target: FlatTree) -> Args:
    """Complete arguments with the shape and dtype of the target's leaf.

    Only strict arguments of JAX arrays are completed. A target's leaf without dimensions implies
    nothing: it often only marks a place. Transforms give their results other shapes.
    """
    if options.legacy is not None:
        return args
    completed = dict(args)
    for names, leaf in zip(target.names, target.values, strict=True):
        arg = args.get(names)
        shape: object = getattr(leaf, "shape", None)
        dtype: object = getattr(leaf, "dtype", None)
        if (
            not isinstance(arg, ArrayRestoreArgs)
            or not arg.strict
            or not shape
            or dtype is None
            or isinstance(leaf, type)
            or is_prng_dtype(dtype)
        ):
            continue
        if arg.global_shape is None:
            arg = dataclasses.replace(arg, global_shape=shape, shape=shape)
        if arg.dtype is None and _is_held_by_jax(as_dtype(dtype)):
            arg = dataclasses.replace(arg, dtype=dtype)
        completed[names] = arg
    return completed


def _is_held_by_jax(dtype: DType) -> bool:
    return dtype.kind not in "SUOMm" and jax.dtypes.canonicalize_dtype(dtype) == dtype
