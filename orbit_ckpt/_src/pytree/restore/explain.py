"""Explain how a tree is restored, leaf by leaf."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import as_dtype, is_prng_dtype
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.sharding import describe_sharding
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.drawing import MOST_LINES, Drawing, Table
from orbit_ckpt._src.metadata.schema import JAX_ARRAY, LeafRecord
from orbit_ckpt._src.metadata.values import ArrayMetadata
from orbit_ckpt._src.pytree.restore.compute import groups_of, source_args
from orbit_ckpt._src.pytree.restore.tree import ResolvedRestore
from orbit_ckpt._src.storage.batch_read import ReadCost
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.text import human_bytes
from orbit_ckpt._src.transform.nodes import (
    Apply,
    ArrayInfo,
    Part,
    Read,
    inputs_of,
    node_key,
    sources_of,
)
from orbit_ckpt._src.transform.patterns import join_name
from orbit_ckpt._src.transform.rules import Node
from orbit_ckpt._src.tree.build import PLACEHOLDER
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs, requested_sharding
from orbit_ckpt._src.type_handlers.base import RestoreArgs
from orbit_ckpt._src.type_handlers.capabilities import ReadPlanner, capability


class LeafPlan(Struct, frozen=True):
    """How one leaf is restored.

    Attributes:
        name: Its keys joined by slashes, as in the patterns of rules.
        actions: The steps: `read`; `rename`, `cast`, `reshard`, `pad` or the action of a rule, such
            as `stack` or `combine`; or `target`, `fallback` or `skip` if nothing is read.
        sources: Names of the stored leaves that are read for it.
        shape: Its shape, None if not known in advance or without one.
        dtype: Its dtype, likewise.
        bytes_read: Bytes read from storage; a source of several leaves counts for the first.
        over_read: Bytes of the chunks read divided by bytes needed; 1.0 if every byte is needed.
    """

    name: str
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    shape: Shape | None = None
    dtype: object = None
    bytes_read: int = 0
    over_read: float = 1.0


class RestorePlan(Struct, frozen=True):
    """How a tree is restored. Prints as a table.

    Attributes:
        leaves: The leaves of the result.
        ignored: Names of stored leaves that are not read.
        peak_bytes: Approximate maximum of host memory held at once: the parts of the result in host
            memory, and data being decoded, cast, copied to devices or computed with.
    """

    leaves: tuple[LeafPlan, ...]
    ignored: tuple[str, ...]
    peak_bytes: int

    @property
    def bytes_read(self) -> int:
        """Bytes read from storage."""
        return sum(leaf.bytes_read for leaf in self.leaves)

    @property
    def restored(self) -> tuple[str, ...]:
        """Names of the leaves that come from the checkpoint."""
        return tuple(leaf.name for leaf in self.leaves if leaf.sources)

    def with_action(self, action: str) -> tuple[str, ...]:
        """Return the names of the leaves with an action."""
        return tuple(leaf.name for leaf in self.leaves if action in leaf.actions)

    def _draw(self) -> Drawing:
        """Return a table with a row for each leaf, and what all of them need."""
        rows = [row_of(leaf) for leaf in self.leaves]
        return Drawing("", [Table(HEADER, rows, HEADER[-2:], what="more leaves")], self.summary)

    @property
    def summary(self) -> tuple[str, str]:
        """How much is restored and read, in words."""
        total = f"{len(self.restored)} of {len(self.leaves)} leaves from the checkpoint"
        memory = f"about {human_bytes(self.peak_bytes)} of host memory"
        return (
            f"{total}; {len(self.ignored)} of its leaves not read",
            f"{human_bytes(self.bytes_read)} to read; {memory}",
        )

    def describe(self, *, most: int | None = MOST_LINES) -> str:
        """Return the table.

        Args:
            most: Maximum number of lines, None for all.
        """
        return self._draw().text(most)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return self.describe()

    def _repr_html_(self) -> str:
        return self._draw().html()


HEADER = ("target", "source", "action", "shape", "bytes read", "over-read")
"""Titles of a table of leaves."""


def row_of(leaf: LeafPlan) -> tuple[str, ...]:
    """Return the row of a leaf."""
    sources = ", ".join(leaf.sources[:2]) + (", ..." if len(leaf.sources) > 2 else "")
    shape = "" if leaf.shape is None else f"{leaf.dtype}{list(leaf.shape)}"
    size = human_bytes(leaf.bytes_read) if leaf.bytes_read else ""
    over = f"{leaf.over_read:.2f}" if leaf.bytes_read else ""
    return (leaf.name or "<root>", sources, ", ".join(leaf.actions), shape, size, over)


async def explain(resolved: ResolvedRestore, *, on_host: bool = False) -> RestorePlan:
    """Explain how a tree is restored; reads metadata only.

    Args:
        resolved: The restore.
        on_host: Whether to assume that all of it stays in host memory, which asks JAX for no
            devices.
    """
    return await _Explanation(resolved, on_host=on_host).make()


class _PlannedRead(Struct, frozen=True, gc=False):
    """A read of one of the arrays of a leaf."""

    record: LeafRecord
    read: ArrayRead
    cost: ReadCost


class _Explanation:
    """Collects the plan of every leaf."""

    def __init__(self, resolved: ResolvedRestore, *, on_host: bool) -> None:
        self._resolved = resolved
        self._on_host = on_host
        self._found: Mapping[NamePath, object] = {}
        self._costs: dict[NamePath, ReadCost] = {}
        self._reads: list[list[_PlannedRead]] = []
        """Leaves that handlers read unchanged."""
        self._source_costs: dict[NamePath, ReadCost] = {}
        self._original = {r.name: names for names, r in resolved.transformed.stored.items()}
        self._used: set[NamePath] = set()
        self._descriptions: dict[object, tuple[list[str], tuple[str, ...]]] = {}
        """Actions and sources of computed values; parts of one share them."""

    async def make(self) -> RestorePlan:
        resolved, transformed = self._resolved, self._resolved.transformed
        records = [r for r in resolved.records if r.name not in resolved.stored.source.inline]
        self._found = await resolved.stored.metadata(records)
        self._costs = self._costs_of(records, resolved.args, self._reads)
        target = resolved.target
        order = [*transformed.records, *transformed.computed, *resolved.alignment.filled]
        if target is not None:
            order = [names for names in target.names if names not in target.empty_names]
        leaves = tuple(self._leaf(names) for names in order if not self._is_empty(names))
        ignored = tuple(
            join_name(names)
            for names, record in transformed.stored.items()
            if names not in self._used and not record.is_empty
        )
        return RestorePlan(leaves, ignored, self._peak_bytes())

    def _is_empty(self, names: NamePath) -> bool:
        record = self._resolved.transformed.records.get(names)
        return record is not None and record.is_empty

    def _costs_of(
        self,
        records: Sequence[LeafRecord],
        args: Mapping[NamePath, RestoreArgs],
        groups: list[list[_PlannedRead]] | None = None,
    ) -> dict[NamePath, ReadCost]:
        stored = self._resolved.stored
        if self._on_host:
            host = RestoreArgs(restore_type=np.ndarray)
            args = {**args, **{r.names: host for r in records if r.typestr == JAX_ARRAY}}
        costs: dict[NamePath, ReadCost] = {}
        for handler, group in stored.split(records, args)[1]:
            planner = capability(handler, ReadPlanner)
            if planner is not None:
                wanted = [args.get(record.names, RestoreArgs()) for record in group]
                found = planner.plan_reads(stored.infos(group), wanted)
                planned = [
                    _PlannedRead(record, read, stored.batch.reader.cost(read))
                    for record, reads in zip(group, found, strict=True)
                    for read in ([reads] if isinstance(reads, ArrayRead) else reads)
                ]
                if groups is not None:
                    groups.append(planned)
                for one in planned:
                    names = one.record.names
                    costs[names] = costs[names] + one.cost if names in costs else one.cost
        return costs

    def _leaf(self, names: NamePath) -> LeafPlan:
        resolved, transformed = self._resolved, self._resolved.transformed
        origin = resolved.alignment.origins.get(names)
        if origin == "fallback":
            value: object = resolved.alignment.filled[names]
            info = ArrayInfo(getattr(value, "shape", None), getattr(value, "dtype", None))
            return self._row(names, [origin], (), info, None, [])
        if origin is not None:
            return LeafPlan(join_name(names), (origin,))
        if names in transformed.records and resolved.alignment.is_read(names):
            return self._read(names, transformed.records[names])
        if names in transformed.computed and resolved.alignment.is_read(names):
            return self._computed(names, transformed.computed[names])
        wanted = (resolved.alignment.wanted or {}).get(names)
        is_kept = names in transformed.kept and wanted is not PLACEHOLDER
        return LeafPlan(join_name(names), ("target" if is_kept else "skip",))

    def _read(self, names: NamePath, record: LeafRecord) -> LeafPlan:
        source = self._original[record.name]
        self._used.add(source)
        metadata = self._found.get(names)
        info, sharding = ArrayInfo(), None
        if isinstance(metadata, ArrayMetadata):
            info, sharding = ArrayInfo(metadata.shape, metadata.dtype), metadata.sharding
        action = "rename" if source != names else "read"
        costs = [self._costs[names]] if names in self._costs else []
        return self._row(names, [action], (join_name(source),), info, sharding, costs)

    def _row(
        self,
        names: NamePath,
        actions: Sequence[str],
        sources: tuple[str, ...],
        info: ArrayInfo,
        sharding: ShardingMetadata | None,
        costs: Sequence[ReadCost],
    ) -> LeafPlan:
        """Return the plan of a leaf, ending in the actions of its arguments."""
        shape, dtype = info.shape, info.dtype
        done = list(actions)
        arg = self._resolved.args.get(names)
        if arg is not None and arg.dtype is not None and not _is_same(dtype, arg.dtype):
            done.append(f"cast {dtype or ''} -> {as_dtype(arg.dtype)}")
            dtype = as_dtype(arg.dtype)
        if isinstance(arg, ArrayRestoreArgs):
            wanted = requested_sharding(arg, names)
            is_placed = isinstance(wanted, jax.sharding.Sharding)
            if is_placed and describe_sharding(wanted) != sharding:
                done.append("reshard")
            if shape is not None and tuple(arg.global_shape or shape) != shape:
                done.append(f"pad or cut {list(shape)}")
            shape = arg.global_shape or shape
        return LeafPlan(
            join_name(names),
            tuple(done),
            sources,
            shape,
            dtype,
            *_bytes_of(costs),
        )

    def _computed(self, names: NamePath, node: Apply | Part) -> LeafPlan:
        made = node.of if isinstance(node, Part) else node
        costs: dict[NamePath, ReadCost] = {}
        if node_key(made) not in self._descriptions:
            reads = {read.names: read for read in sources_of(made)}
            costs = self._new_costs(reads)
            self._descriptions[node_key(made)] = _actions(made), tuple(map(join_name, reads))
        actions, sources = self._descriptions[node_key(made)]
        return self._row(names, actions, sources, node.info, None, list(costs.values()))

    def _new_costs(self, reads: Mapping[NamePath, Read]) -> dict[NamePath, ReadCost]:
        """Return the cost of reading sources that no earlier leaf has counted."""
        stored = self._resolved.transformed.stored
        new = {source: read for source, read in reads.items() if source not in self._used}
        self._used.update(new)
        args = {source: source_args(read, stored[source]) for source, read in new.items()}
        costs = self._costs_of([stored[source] for source in new], args)
        self._source_costs |= costs
        return costs

    def _peak_bytes(self) -> int:
        """Estimate the host memory needed at once."""
        resolved = self._resolved
        reader = resolved.stored.batch.reader
        kept = peak = 0
        for group in self._reads:
            reads = [one.read for one in group]
            sizes = [self._kept_bytes(one.record, one.read) for one in group]
            is_dropped = [size != read.nbytes for size, read in zip(sizes, reads, strict=True)]
            done = 0
            for window, _ in reader.windows(reads, is_dropped):
                held = sum(
                    one.read.nbytes + (0 if reader.can_stream(one.read.layout) else one.cost.stored)
                    for one in group[done : done + len(window)]
                )
                made = sum(sizes[done : done + len(window)])
                peak = max(peak, kept + held)
                kept += made
                done += len(window)
        computed = {
            names for names in resolved.transformed.computed if resolved.alignment.is_read(names)
        }
        for group in groups_of(resolved.transformed, computed, reader.limiter.max_bytes):
            sources = {read.names for read in sources_of(*[node for _, node in group])}
            held = sum(self._source_costs[n].wanted for n in sources if n in self._source_costs)
            made = sum(_nbytes(node.info) for _, node in group)
            peak = max(peak, kept + held + made)
            kept += made
        return max(peak, kept)

    def _kept_bytes(self, record: LeafRecord, read: ArrayRead) -> int:
        """Return the host memory of a restored leaf."""
        if self._is_moved(record):
            return 0
        arg, metadata = self._resolved.args.get(record.names), self._found.get(record.names)
        if arg is None or not isinstance(metadata, ArrayMetadata) or is_prng_dtype(metadata.dtype):
            return read.nbytes
        size = read.nbytes
        if isinstance(arg, ArrayRestoreArgs) and arg.global_shape not in (None, metadata.shape):
            size = math.prod(arg.global_shape or ()) * metadata.dtype.itemsize
        dtype = metadata.dtype if arg.dtype is None else as_dtype(arg.dtype)
        return size // metadata.dtype.itemsize * dtype.itemsize

    def _is_moved(self, record: LeafRecord) -> bool:
        """Return whether a leaf moves from host memory to a device."""
        if self._on_host:
            return False
        arg = self._resolved.args.get(record.names)
        sharding = None
        if isinstance(arg, ArrayRestoreArgs):
            sharding = requested_sharding(arg, record.path)
        is_host = arg is not None and arg.restore_type is not None
        if not isinstance(sharding, jax.sharding.Sharding):
            is_jax = record.typestr == JAX_ARRAY and not is_host
            return is_jax and jax.default_backend() != "cpu"
        return any(device.platform != "cpu" for device in sharding.device_set)


def _nbytes(info: ArrayInfo) -> int:
    if info.shape is None or info.dtype is None or is_prng_dtype(info.dtype):
        return 0
    return math.prod(info.shape) * as_dtype(info.dtype).itemsize


def _actions(node: Node) -> list[str]:
    """Return the actions that produce a value, in order."""
    done: dict[str, None] = {}
    seen: set[object] = set()

    def add(node: Node) -> None:
        if node_key(node) in seen:
            return
        seen.add(node_key(node))
        for part in inputs_of(node):
            add(part)
        if isinstance(node, Apply):
            done[node.action] = None
        elif isinstance(node, Read) and node.dtype is not None:
            done[f"cast {as_dtype(node.dtype)}"] = None

    add(node)
    return list(done)


def _is_same(dtype: object, other: object) -> bool:
    if dtype is None:
        return False
    return dtype == other if is_prng_dtype(dtype) else as_dtype(dtype) == as_dtype(other)


def _bytes_of(costs: Sequence[ReadCost]) -> tuple[int, float]:
    wanted = sum(cost.wanted for cost in costs)
    chunks = sum(cost.chunks for cost in costs)
    return sum(cost.stored for cost in costs), chunks / wanted if wanted else 1.0
