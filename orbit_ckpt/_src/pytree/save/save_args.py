"""Match the options of leaves with the tree that they are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orbit_ckpt._src.arrays.dtypes import as_dtype, storable
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.tree.flatten import flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import NamePath, format_path, name_path
from orbit_ckpt._src.type_handlers.base import SaveArgs


def align_save_args(save_args: object, names: Sequence[NamePath]) -> dict[NamePath, SaveArgs]:
    """Return copies of the options of leaves, by path; the caller may change its own.

    Args:
        save_args: Tree of `SaveArgs` like the tree that is saved; may lack leaves.
        names: The names of the leaves of that tree.

    Raises:
        ValueError: It has leaves that the tree lacks, or others than `SaveArgs`.
    """
    if save_args is None:
        return {}
    flat = flatten(save_args)
    aligned: dict[NamePath, SaveArgs] = {}
    known = set(names)
    copies: dict[int, SaveArgs] = {}  # many leaves share one
    for path, value in zip(flat.paths, flat.values, strict=True):
        if is_empty_node(value):
            continue
        where = format_path(path)
        if not hasattr(value, "chunk_byte_size"):
            raise ValueError(
                f"save_args: {where}: expected SaveArgs, found {show(value)}. Give a tree like the "
                "one that is saved, with SaveArgs for leaves."
            )
        if name_path(path) not in known:
            raise ValueError(
                f"save_args: {where}: the tree has no such leaf. Give SaveArgs for leaves "
                "of the tree, as in jax.tree.map(lambda _: SaveArgs(), tree)."
            )
        args = copies.get(id(value))
        if args is None:
            args = replace(value) if isinstance(value, SaveArgs) else _convert_args(value)
            copies[id(value)] = args
        if args.dtype is not None and not storable(as_dtype(args.dtype)):
            raise ValueError(
                f"save_args: {where}: dtype {args.dtype} cannot be stored. Give a dtype of numbers."
            )
        aligned[name_path(path)] = args
    return aligned


def _convert_args(value: object) -> SaveArgs:
    """Convert another library's `SaveArgs` with the same fields to ours."""
    dtype = getattr(value, "dtype", None)
    axes = tuple(getattr(value, "shard_axes", ()))
    return SaveArgs(False, dtype, getattr(value, "chunk_byte_size", None), axes)
