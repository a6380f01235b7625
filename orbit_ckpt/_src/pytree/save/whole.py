"""Small leaves that a save writes as whole arrays, planned once for all that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import jax
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.arrays.snapshot import current_snapshots
from orbit_ckpt._src.pytree.save.plan import LeafGroup, PlannedLeaf, SavePlan
from orbit_ckpt._src.storage.small_write import WholeArrays
from orbit_ckpt._src.type_handlers.array_io import plan_array
from orbit_ckpt._src.type_handlers.base import ParamInfo, SaveArgs, SaveBatch
from orbit_ckpt._src.type_handlers.capabilities import FormHandler


class LeafColumns(Struct, frozen=True):
    """What is recorded of every leaf, in the order of the tree.

    Attributes:
        write_shapes: Shapes of the parts that one device writes, for JAX arrays.
        shardings: Shardings of JAX arrays.
    """

    write_shapes: list[Shape | None]
    shardings: list[ShardingMetadata | None]

    @classmethod
    def of(cls, plan: SavePlan) -> LeafColumns:
        """Return the columns of a tree, with what is known of whole arrays."""
        count = len(plan.names)
        columns = cls([None] * count, [None] * count)
        for group in plan.groups:
            if group.form is not None:
                for position in group.positions:
                    columns.write_shapes[position] = group.form.write_shape
                    columns.shardings[position] = group.form.sharding
        return columns


def copy_whole(plan: SavePlan, values: list[object]) -> None:
    """Replace arrays that the save writes itself by copies."""
    snapshots = current_snapshots()
    for group in plan.groups:
        if group.form is None or group.form.is_immutable:
            continue
        arrays = _arrays(plan, group)
        snapshots.observe(array for array in arrays if isinstance(array, jax.Array))
        for position, array in zip(group.positions, arrays, strict=True):
            values[position] = np.array(array, order="C")


def add_whole(
    plan: SavePlan, batch: SaveBatch, make_info: Callable[[PlannedLeaf], ParamInfo]
) -> None:
    """Add whole arrays to the batch of their save.

    Args:
        plan: The leaves.
        batch: The batch.
        make_info: Returns the place of a leaf.

    Raises:
        TypeError: The dtype of one cannot be stored.
        ValueError: The options of one do not fit it.
    """
    for group in plan.groups:
        form = group.form
        if form is None:
            continue
        info = make_info(plan.leaf(group.positions[0], group.args))
        args = group.args if form.is_cast else SaveArgs()
        how = plan_array(form.shape, form.dtype, form.shape, info, args, form.leaf_type)
        names = [plan.names[position] for position in group.positions]
        if how.detail is not None:
            batch.details.update(dict.fromkeys(names, how.detail))
        batch.writer.add_whole(
            WholeArrays(
                layout=how.layout,
                document=how.document,
                dtype=how.native,
                names=names,
                values=_arrays(plan, group),
                paths=[plan.flat.paths[position] for position in group.positions],
                positions=group.positions,
            )
        )


def _arrays(plan: SavePlan, group: LeafGroup) -> Sequence[np.ndarray | jax.Array]:
    """Return the arrays of the leaves of a group that has a form."""
    values = [plan.flat.values[position] for position in group.positions]
    return cast(FormHandler, group.handler).arrays(values)
