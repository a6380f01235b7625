"""Find arrays that are several leaves of a tree, such as tied embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from orbit_ckpt._src.pytree.save.plan import SavePlan
from orbit_ckpt._src.type_handlers.array import ArrayHandler
from orbit_ckpt._src.type_handlers.numpy import NumpyHandler

_MIN_BYTES = 1 << 16
"""Smaller arrays are written as often as they occur."""


def uncast_arrays(plan: SavePlan) -> list[tuple[str, np.ndarray | jax.Array]]:
    """Return the arrays that are stored with the values that they have, by storage name.

    What other handlers than the built-in ones store of an array may depend on the leaf. Arrays that
    are planned by form are left out; they are small.
    """
    positions = [
        position
        for group in plan.groups
        if group.form is None and group.args.dtype is None
        if type(group.handler) in {ArrayHandler, NumpyHandler}
        for position in group.positions
    ]
    leaves = [(plan.names[i], plan.flat.values[i]) for i in sorted(positions)]
    return [(name, leaf) for name, leaf in leaves if isinstance(leaf, (np.ndarray, jax.Array))]


def find_tied(plan: SavePlan) -> Mapping[str, str]:
    """Return the storage names of arrays that an earlier leaf is too, and that leaf's name."""
    arrays = uncast_arrays(plan)
    if len({id(array) for _, array in arrays}) == len(arrays):
        return {}
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, array in arrays:
        known = first.setdefault(id(array), name)
        if known != name and array.nbytes >= _MIN_BYTES:
            tied[name] = known
    return tied
