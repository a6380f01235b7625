"""Take the leaves of a tree from the caller, who may then change, delete or donate them."""

from __future__ import annotations

from itertools import islice

from orbit_ckpt._src.arrays.transfer import TakenArray
from orbit_ckpt._src.pytree.plan import SavePlan
from orbit_ckpt._src.storage.host_copies import copy_all
from orbit_ckpt._src.type_handlers.capabilities import ValueTaker, capability


async def take_leaves(
    plan: SavePlan, max_transfer_bytes: int | None, *, is_primary: bool = True
) -> SavePlan | None:
    """Return the plan with copies in place of the leaves.

    Args:
        plan: What to save.
        max_transfer_bytes: Most bytes being copied from devices at once, None for no limit.
        is_primary: Whether this process writes what all processes have; else that is not copied.

    Returns:
        None if a handler does not give its values away; all must then be asked to write at once.
    """
    groups = plan.groups()
    takers = [t for handler, _ in groups if (t := capability(handler, ValueTaker)) is not None]
    # what may be wrong with chunks is found by handlers
    has_chunks = any(a.chunk_byte_size is not None or a.shard_axes for a in plan.args.values())
    if len(takers) < len(groups) or has_chunks:
        return None
    values = list(plan.flat.values)
    arrays: list[TakenArray] = []
    for taker, (_, positions) in zip(takers, groups, strict=True):
        taken = taker.take([values[position] for position in positions])
        for position, value in zip(positions, taken, strict=True):
            values[position] = value
            if not is_primary and isinstance(value, TakenArray) and value.sharding is None:
                value.shards.clear()  # holds nothing of the caller's either
        arrays += [value for value in taken if isinstance(value, TakenArray)]
    copies = iter(await copy_all([s for a in arrays for s in a.shards], max_transfer_bytes))
    for array in arrays:
        array.shards[:] = islice(copies, len(array.shards))
    return plan.with_values(values)
