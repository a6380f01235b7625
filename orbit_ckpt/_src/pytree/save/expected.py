"""Options of leaves that will be loaded on other meshes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orbit_ckpt._src.arrays.dtypes import is_prng_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.pytree.save.save_args import align_save_args
from orbit_ckpt._src.transform.expected_mesh import ExpectedMesh, own_spec
from orbit_ckpt._src.transform.patterns import join_name
from orbit_ckpt._src.tree.build import build_tree
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import KeyPath, NamePath
from orbit_ckpt._src.type_handlers.base import SaveArgs


def expect_meshes(tree: object, meshes: Sequence[ExpectedMesh], save_args: object) -> object:
    """Return save arguments for chunks that suit loads on some meshes.

    Args:
        tree: The tree to save; lazy arrays have the shardings that are recorded.
        meshes: The meshes.
        save_args: Save arguments to add to, or None.
    """
    flat = flatten(tree)
    known = align_save_args(save_args, flat.names)
    shared: dict[tuple[int, tuple[Shape, ...]], SaveArgs] = {}  # leaves alike are planned once
    default = SaveArgs()
    found: list[tuple[KeyPath, SaveArgs]] = []
    for path, names, value in zip(flat.paths, flat.names, flat.values, strict=True):
        own = known.get(names, default)
        shapes = _read_shapes(names, value, meshes)
        if shapes:
            key = (id(own), shapes)
            own = shared.setdefault(key, replace(own, read_shapes=shapes))
        if own is not default:
            found.append((path, own))
    return build_tree(found) if found else None


def _read_shapes(
    names: NamePath, value: object, meshes: Sequence[ExpectedMesh]
) -> tuple[Shape, ...]:
    """Return the distinct shapes of the parts of a leaf on some meshes, the whole aside."""
    dtype: object = getattr(value, "dtype", None)
    if dtype is None or is_prng_dtype(dtype):
        return ()
    shape: Shape = tuple(getattr(value, "shape", ()))
    spec, name = own_spec(getattr(value, "sharding", None)), join_name(names)
    parts = (mesh.shard_shape(name, shape, spec) for mesh in meshes)
    return tuple(dict.fromkeys(part for part in parts if part != shape))
