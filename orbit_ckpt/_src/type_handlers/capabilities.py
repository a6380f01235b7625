"""Optional capabilities of type handlers and of the values that they handle, as protocols.

Generic code queries `capability` for them, never the class of a handler, and does without where one
is missing. A capability belongs to the methods of the class that defines it: a subclass that
overrides `serialize` or `deserialize` loses the capabilities that depend on them, unless it defines
these again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.arrays.transfer import ArraySnapshot
from orbit_ckpt._src.errors import UnsupportedLeafError
from orbit_ckpt._src.runtime.checks import is_overridden
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs

CapabilityT = TypeVar("CapabilityT")


@runtime_checkable
class ValueChecker(Protocol):
    """A handler that can detect before a save that a value cannot be written.

    Without it, a bad value fails the save halfway, and the error names that leaf only.
    """

    def check(self, value: object) -> str | None:
        """Return why a value cannot be written, None if it can."""
        ...


@runtime_checkable
class SnapshotHandler(Protocol):
    """A handler that can take a snapshot of values before it writes them.

    A background save then calls `serialize` in the background, with the snapshots. Every process
    has an `ArraySnapshot` without a sharding, and the primary one writes it. Without it,
    `serialize` runs before the save returns, which takes longer.
    """

    def snapshot(self, values: Sequence[object]) -> Sequence[object]:
        """Return objects that `serialize` accepts in place of the values.

        The shards of an `ArraySnapshot` still refer to the caller's memory; the save copies them
        before the caller may change the arrays. Nothing else may refer to it.
        """
        ...


class ArrayForm(Struct, frozen=True):
    """How a save stores values of one form, each as one whole array in host memory.

    Attributes:
        shape: Shape of the array.
        dtype: Its logical dtype.
        is_cast: Whether `SaveArgs` apply to it.
        leaf_type: See `LeafDetail.type`.
        write_shape: Shape to record as that of the written part, None for none.
        sharding: Sharding to record.
        is_immutable: Whether the caller cannot change the values.
    """

    shape: Shape
    dtype: DType
    is_cast: bool = True
    leaf_type: str | None = None
    write_shape: Shape | None = None
    sharding: ShardingMetadata | None = None
    is_immutable: bool = False


@runtime_checkable
class FormHandler(Protocol):
    """A handler of values that fall into few forms: what is planned for one holds for its like.

    A save of one process then plans every form once, and writes the arrays without `serialize`.
    """

    def forms(self, values: Sequence[object]) -> Sequence[Hashable]:
        """Return the form of every value; two of one form differ in their contents only."""
        ...

    def unusable(self, values: Sequence[object]) -> Mapping[int, str]:
        """Return why values cannot be written, by position, where their form is not the reason."""
        ...

    def array_form(self, value: object) -> ArrayForm | None:
        """Return how values of the form of this one are stored, None if `serialize` decides."""
        ...

    def arrays(self, values: Sequence[object]) -> Sequence[np.ndarray | jax.Array]:
        """Return the arrays of values that have an `ArrayForm`."""
        ...


@runtime_checkable
class ReadPlanner(Protocol):
    """A handler that can list what it reads for a leaf, without reading it.

    `deserialize` reads nothing else. Without it, a plan counts no bytes for its leaves, neither
    read nor held in memory, and a load checks files that it may read besides its arrays.
    """

    def plan_reads(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[ArrayRead | Sequence[ArrayRead]]:
        """Return what `deserialize` would read for the same arguments.

        Returns:
            For every leaf the read of its array, or those of all arrays that it consists of.
        """
        ...


@runtime_checkable
class ArrayStorage(Protocol):
    """A handler that stores every leaf as one array under the leaf's name, in the save's batch.

    Such arrays must exist, and all their chunks are checked. If `deserialize` belongs to the same
    class, the values of leaves are those of the arrays, which can be read without the handler.
    Without it, `verify` cannot tell which array is missing, and `diff` loads whole leaves.
    """

    def stored_arrays(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayRead]:
        """Return reads of the whole array of each leaf.

        Raises:
            CorruptionError: The metadata document of one is missing.
        """
        ...


@runtime_checkable
class TextStorage(Protocol):
    """A handler that stores every leaf in the strings file.

    Without it, `verify` does not notice that the text of a leaf is missing.
    """

    def stored_text(self, info: ParamInfo) -> str | None:
        """Return the stored text of a leaf, None without one."""
        ...


@runtime_checkable
class LazyReader(Protocol):
    """A handler whose leaves can stay in the checkpoint until their values are needed.

    Parts of them are read from the stored array, without the handler. Without it and without
    `LazyComposer`, a lazy load reads its leaves at once.
    """

    lazy_type: type
    """Type of restored whole leaves: `jax.Array` or `np.ndarray`."""

    def read_now(self, info: ParamInfo, arg: RestoreArgs) -> object:
        """Read one leaf as `deserialize` does, on the calling thread alone."""
        ...

    async def read_alone(self, info: ParamInfo, arg: RestoreArgs) -> object:
        """Read it with the threads of `deserialize`; no other process takes part."""
        ...


class OpenArray(Protocol):
    """Opens stored arrays without reading them."""

    def __call__(self, info: ParamInfo, arg: RestoreArgs) -> object:
        """Return the stored array of a name as a `LazyArray`."""
        ...


@runtime_checkable
class LazyComposer(Protocol):
    """A handler whose leaves are made of several arrays, which can stay in the checkpoint.

    Without it and without `LazyReader`, a lazy load reads its leaves at once.
    """

    def lazy_leaf(self, info: ParamInfo, arg: RestoreArgs, open_array: OpenArray) -> object:
        """Return a leaf whose arrays are lazy; `serialize` must accept it.

        Args:
            info: The leaf.
            arg: How it is restored.
            open_array: Returns one of its arrays, given an info with the array's own name.
        """
        ...


@runtime_checkable
class LeafNode(Protocol):
    """A pytree node that is one leaf of checkpoints, for which its class has a type handler.

    Without it, a node is a container, and its children are leaves with handlers of their own.
    """

    is_checkpoint_leaf: ClassVar[bool]
    """True, in the class itself."""

    def restore_args(self) -> RestoreArgs:
        """Return the arguments that restore a leaf like this one of a target.

        Its children may be abstract, such as `jax.ShapeDtypeStruct`.
        """
        ...


_BASIS: Mapping[type, tuple[str, Sequence[str]]] = {
    ValueChecker: ("check", ("serialize",)),
    SnapshotHandler: ("snapshot", ("serialize",)),
    FormHandler: ("forms", ("check", "snapshot", "serialize")),
    ReadPlanner: ("plan_reads", ("deserialize",)),
    ArrayStorage: ("stored_arrays", ("serialize",)),
    TextStorage: ("stored_text", ("serialize",)),
    LazyReader: ("read_now", ("serialize", "deserialize")),
    LazyComposer: ("lazy_leaf", ("serialize", "deserialize")),
}
"""The method of each capability, and those that it depends on."""


def capability(handler: object, kind: type[CapabilityT]) -> CapabilityT | None:
    """Return a handler as one with a capability, None if it lacks that.

    Args:
        handler: A type handler.
        kind: One of the optional protocols.
    """
    method, depends_on = _BASIS[kind]
    if not isinstance(handler, kind):
        return None
    is_stale = any(is_overridden(handler, name, since=method) for name in depends_on)
    return None if is_stale else handler


def derives_from_orbax(handler: object) -> bool:
    """Return whether a handler derives from a class of Orbax, which writes arrays by itself.

    With `ocdbt` they go into databases that Orbax names by the process.
    """
    return any(base.__module__.partition(".")[0] == "orbax" for base in type(handler).__mro__)


def plain_arrays(handler: object) -> ArrayStorage | None:
    """Return a handler whose leaves have the values of their stored arrays, None for another."""
    found = capability(handler, ArrayStorage)
    reads_itself = is_overridden(handler, "deserialize", since="stored_arrays")
    return None if reads_itself else found


def check_converted(
    handler: ValueChecker, values: Sequence[object], infos: Sequence[ParamInfo]
) -> None:
    """Check values that a subclass has converted; others have been checked.

    Raises:
        UnsupportedLeafError: Some cannot be written.
    """
    if not is_overridden(handler, "serialize", since="check"):
        return
    problems = {
        info.label: reason
        for value, info in zip(values, infos, strict=True)
        if not isinstance(value, ArraySnapshot) and (reason := handler.check(value)) is not None
    }
    if problems:
        lines = "\n".join(f"  {label}: {reason}" for label, reason in problems.items())
        raise UnsupportedLeafError(
            f"{type(handler).__qualname__} makes values of {len(problems)} leaves that cannot be "
            f"stored:\n{lines}\nReturn other values from its serialize.",
            paths=list(problems),
        )
