"""Find arrays that are several leaves of a tree, such as tied embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from orbit_ckpt._src.arrays.dtypes import is_host_array
from orbit_ckpt._src.pytree.save.plan import SavePlan

_MIN_BYTES = 1 << 16
"""Smaller arrays are written as often as they occur."""


def find_tied(plan: SavePlan) -> Mapping[str, str]:
    """Return the storage names of arrays that an earlier leaf is too, and that leaf's name."""
    positions = [p for group in plan.groups if group.form is None for p in group.positions]
    values = plan.flat.values
    if len({id(values[position]) for position in positions}) == len(positions):
        return {}
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for position in sorted(positions):
        value, name = values[position], plan.names[position]
        if (is_host_array(value) or isinstance(value, jax.Array)) and value.nbytes >= _MIN_BYTES:
            known = first.setdefault(id(value), name)
            if known != name:
                tied[name] = known
    return tied
