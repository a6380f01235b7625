"""The plan of the last save, for the next save of a tree that is stored alike.

A training saves one tree thousands of times, of which only the values differ. A kept plan holds no
values of leaves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypedDict

from typing_extensions import Unpack

from orbit_ckpt._src.arrays.unchanged import KnownArrays
from orbit_ckpt._src.pytree.save.plan import LeavesOfClass, SavePlan, empty_classes, plan_save
from orbit_ckpt._src.pytree.save.save_args import align_save_args
from orbit_ckpt._src.tree.flatten import FlatTree, flatten
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import SaveArgs
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry

_MAX_LEAVES = 1 << 16
"""Plans of larger trees are not kept, because of their memory."""


class PlanOptions(TypedDict, total=False):
    """The options of `plan_save`; the same for all saves of one owner."""

    use_ocdbt: bool
    use_zarr3: bool
    rich_types: bool


class KeptPlan:
    """Plans saves, and keeps the last plan until it is dropped.

    Attributes:
        arrays: The arrays that the last incremental save has stored.
    """

    def __init__(self) -> None:
        self.arrays = KnownArrays()
        self._last: SavePlan | None = None
        self._process = os.getpid()

    def plan(
        self,
        tree: object,
        registry: TypeHandlerRegistry,
        save_args: object = None,
        **options: Unpack[PlanOptions],
    ) -> SavePlan:
        """Plan the save of a tree.

        Args:
            tree: The tree.
            registry: Where type handlers are looked up.
            save_args: Tree of `SaveArgs` like `tree`; may lack leaves.
            **options: See `plan_save`.

        Raises:
            UnsupportedLeafError: Some leaves cannot be written; lists all of them.
            NameCollisionError: Two leaves would have one storage name, or a name cannot be stored.
            ValueError: The tree cannot be flattened, or `save_args` has leaves that it lacks.
        """
        if self._process != os.getpid():  # this process is a fork
            self.drop()
        flat = flatten(tree)
        args = align_save_args(save_args, flat.names)
        last, self._last = self._last, None
        if last is not None and _is_alike(last, flat, args, registry):
            plan = last.with_values(flat.values)
        else:
            plan = plan_save(tree, flat, registry, args=args, **options)
        if len(flat.values) <= _MAX_LEAVES:
            self._last = plan.with_values([])
        return plan

    def drop(self) -> None:
        """Forget the last plan and what was saved."""
        self._last = None
        self.arrays.drop()
        self._process = os.getpid()


def _is_alike(
    last: SavePlan, flat: FlatTree, args: Mapping[NamePath, SaveArgs], registry: TypeHandlerRegistry
) -> bool:
    """Return whether a plan fits a tree, all of whose leaves can be stored."""
    then, now = last.flat, flat
    return (
        # equal but different keys, such as 1 and True, differ as text
        bool(now.places.text)
        and now.places.text == then.places.text
        and now.treedef == then.treedef
        and empty_classes(now) == last.empty
        and args == last.args
        and all(_are_alike(leaves, now, registry) for leaves in last.classes)
    )


def _are_alike(leaves: LeavesOfClass, flat: FlatTree, registry: TypeHandlerRegistry) -> bool:
    """Return whether the leaves of another tree at the same positions are stored alike."""
    kind, handler, former = leaves.kind, leaves.handler, leaves.former
    values = [flat.values[position] for position in leaves.positions]
    return (
        set(map(type, values)) == {kind}
        and registry.has(kind)
        and registry.get(kind) is handler
        and (former is None or list(former.forms(values)) == leaves.forms)
        and not leaves.problems(values, is_known=True)
    )
