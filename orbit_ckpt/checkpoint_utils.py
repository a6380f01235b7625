"""Helpers of Orbax's module of the same name."""

from __future__ import annotations

import jax

from orbit_ckpt.metadata.values import TreeMetadata
from orbit_ckpt.pytree.target import restore_args_of
from orbit_ckpt.tree.flatten import flatten, is_empty_node

__all__ = ["construct_restore_args"]


def construct_restore_args(
    target: object,
    sharding_tree: object = None,
    set_global_shape: bool = True,
    support_layout: bool = False,  # noqa: ARG001 - Orbax's signature
    strict: bool = True,
) -> object:
    """Return a tree of `RestoreArgs` that restores leaves like those of a target.

    Args:
        target: A tree of arrays, `jax.ShapeDtypeStruct`, scalars, strings or leaf metadata.
        sharding_tree: Shardings to use instead of those of the target's leaves, in its structure.
        set_global_shape: Whether the target's shapes are asked for.
        support_layout: Not used; kept because Orbax has it.
        strict: Whether a different stored shape is an error; else arrays are padded or cut.

    Raises:
        ValueError: `sharding_tree` does not have the target's structure.
    """
    if isinstance(target, TreeMetadata):
        target = target.tree
    flat = flatten(target)
    shardings: list[object] = [None] * len(flat.values)
    if sharding_tree is not None:
        shardings = jax.tree_util.tree_flatten(sharding_tree, is_leaf=is_empty_node)[0]
        if len(shardings) != len(flat.values):
            raise ValueError(
                f"sharding_tree has {len(shardings)} leaves, the target {len(flat.values)}; give "
                "one sharding per leaf, anything for leaves that are no JAX arrays."
            )
    return flat.unflatten(
        [
            leaf
            if is_empty_node(leaf) or leaf is ...
            else restore_args_of(
                leaf, sharding=sharding, set_global_shape=set_global_shape, strict=strict
            )
            for leaf, sharding in zip(flat.values, shardings, strict=True)
        ]
    )
