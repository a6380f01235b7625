"""Compute leaves from stored ones, some at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, as_dtype, is_prng_dtype
from orbit_ckpt._src.arrays.memory import aligned_empty
from orbit_ckpt._src.metadata.schema import JAX_ARRAY, LeafRecord
from orbit_ckpt._src.pytree.evaluate import Evaluation, call, identity
from orbit_ckpt._src.pytree.target import restore_args_of
from orbit_ckpt._src.pytree.view import View, nodes_by_source
from orbit_ckpt._src.transform.arrays import as_array
from orbit_ckpt._src.transform.nodes import Apply, Node, Read, inputs_of, sources_of
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import RestoreArgs

_BATCH_LEAVES = 256
"""Most sources that are held at once, unless one result needs more."""

_BATCH_BYTES = 1 << 26
"""Most bytes of sources that are held at once, unless one result needs more."""

ReadLeaves = Callable[
    [Sequence[LeafRecord], Mapping[NamePath, RestoreArgs]],
    Awaitable[Mapping[NamePath, object]],
]


async def compute_leaves(
    view: View,
    wanted: set[NamePath],
    read: ReadLeaves,
    place: Callable[[NamePath, object, bool], object],
    *,
    max_bytes: int | None = None,
) -> dict[NamePath, object]:
    """Return computed leaves; what they are computed from is dropped as soon as it is not needed.

    Args:
        view: What there is.
        wanted: Which of its computed leaves.
        read: Reads stored leaves.
        place: Makes a computed value what the caller asked for; is told whether it comes from
            arrays of JAX.
        max_bytes: See `groups_of`.

    Raises:
        TransformError: A function has failed.
    """
    is_from_jax = _Origins(view.stored)
    fetch = partial(_read, view, read)
    results: dict[NamePath, object] = {}
    for batch in groups_of(view, wanted, max_bytes):
        nodes = [node for _, node in batch]
        values = {
            identity(stack): await _fill(names, stack, fetch)
            for names, stack in _large_stacks(batch)
        }
        values |= await fetch(list(sources_of(*nodes, known=values)))
        evaluate = Evaluation(values, nodes)
        for names, node in batch:
            value = evaluate(names, node)
            from_jax = is_from_jax(node) and _is_numeric(value)
            results[names] = value if view.is_final else place(names, value, from_jax)
    return results


def groups_of(
    view: View, wanted: Container[NamePath], max_bytes: int | None = None
) -> Iterator[_Named]:
    """Yield computed leaves in groups that are computed one after the other.

    Args:
        view: What there is.
        wanted: Which of its computed leaves.
        max_bytes: Most bytes of sources that are held at once, unless one result needs more;
            None for a default, which is never exceeded.
    """
    nodes = {names: node for names, node in view.computed.items() if names in wanted}
    groups = [list(group.items()) for group in nodes_by_source(nodes)]
    return _batches(groups, min(max_bytes or _BATCH_BYTES, _BATCH_BYTES))


_Fetch = Callable[[Sequence[Read]], Awaitable[dict[object, object]]]

_Named = Sequence[tuple[NamePath, Node]]
"""Nodes with the names of the results that they are for."""


class _Origins:
    """Tells whether what a node is made of includes arrays of JAX."""

    def __init__(self, stored: Mapping[NamePath, LeafRecord]) -> None:
        self._stored = stored
        self._known: dict[object, bool] = {}

    def __call__(self, node: Node) -> bool:
        key = identity(node)
        if key not in self._known:
            is_jax = isinstance(node, Read) and self._stored[node.names].typestr == JAX_ARRAY
            self._known[key] = is_jax or any(map(self, inputs_of(node)))
        return self._known[key]


def _is_numeric(value: object) -> bool:
    """Whether JAX could have a value as an array; it has none of text, dates and objects."""
    return not isinstance(value, np.ndarray) or cast(HostArray, value).dtype.kind not in "SUOmM"


async def _read(view: View, read: ReadLeaves, sources: Sequence[Read]) -> dict[object, object]:
    """Return stored values by the identities of their nodes."""
    values: dict[object, object] = {}
    for reads in _in_turn(sources):
        records = [view.stored[names] for names in reads]
        args = {names: source_args(source, view.stored[names]) for names, source in reads.items()}
        found = await read(records, args)
        values |= {identity(source): found[names] for names, source in reads.items()}
    await asyncio.sleep(0)  # the loop keeps what it was told last until it is told something else
    return values


async def _fill(names: NamePath, node: Apply, fetch: _Fetch) -> HostArray:
    """Return a stack of arrays, of which only a few are held at a time besides it."""
    info = node.info
    result = aligned_empty(cast(tuple[int, ...], info.shape), as_dtype(info.dtype))
    rows = np.moveaxis(result, cast(int, node.stack_axis), 0)
    done = 0
    for batch in _batches([[(names, part)] for part in node.inputs], _BATCH_BYTES):
        parts = [part for _, part in batch]
        evaluate = Evaluation(await fetch(list(sources_of(*parts))), parts)
        for part in parts:
            call(names, node.action, partial(_put, rows, done), [evaluate(names, part)])
            done += 1
    return result


def _put(rows: HostArray, index: int, value: object) -> None:
    rows[index] = as_array(value)


def _large_stacks(batch: _Named) -> Iterator[tuple[NamePath, Apply]]:
    """Yield the stacks that are filled one input after the other, and what they are for."""
    seen: set[object] = set()
    pending = list(batch)
    while pending:
        names, node = pending.pop()
        if identity(node) in seen:
            continue
        seen.add(identity(node))
        if isinstance(node, Apply) and _is_large_stack(node):
            yield names, node
        else:
            pending += [(names, part) for part in inputs_of(node)]


def _is_large_stack(node: Apply) -> bool:
    if node.stack_axis is None or node.info.shape is None or is_prng_dtype(node.info.dtype):
        return False
    return _nbytes(node) > _BATCH_BYTES and all(map(_is_known_row, node.inputs))


def _is_known_row(node: Node) -> bool:
    """Whether a node is computed from leaves of its own by rules that call no function."""
    match node:
        case Read():
            return True
        case Apply():
            return node.info.shape is not None and all(map(_is_known_row, node.inputs))
        case _:
            return False


def _batches(groups: Sequence[_Named], max_bytes: int) -> Iterator[_Named]:
    """Yield groups, small ones together."""
    batch: list[tuple[NamePath, Node]] = []
    held = nbytes = 0
    for group in groups:
        sources = list(sources_of(*[node for _, node in group]))
        size = sum(map(_nbytes, sources))
        if batch and (held + len(sources) > _BATCH_LEAVES or nbytes + size > max_bytes):
            yield batch
            batch, held, nbytes = [], 0, 0
        batch += group
        held += len(sources)
        nbytes += size
    if batch:
        yield batch


def _nbytes(node: Read | Apply) -> int:
    """Return the size of a result, 0 if it is not known."""
    shape, dtype = node.info.shape, node.info.dtype
    return 0 if shape is None else math.prod(shape) * cast(DType, dtype).itemsize


def _in_turn(sources: Sequence[Read]) -> list[dict[NamePath, Read]]:
    """Return what is read, by names; a leaf that is read in several ways is in several of them."""
    turns: list[dict[NamePath, Read]] = []
    for read in {identity(source): source for source in sources}.values():
        turn = next((turn for turn in turns if read.names not in turn), None)
        if turn is None:
            turns.append({read.names: read})
        else:
            turn[read.names] = read
    return turns


def source_args(read: Read, record: LeafRecord) -> RestoreArgs:
    """Return how a leaf is read; arrays as such of numpy unless the rule says otherwise.

    Typed keys, which numpy does not have, stay keys.
    """
    if read.args is not None:
        return restore_args_of(read.args)
    is_host = record.typestr == JAX_ARRAY and not is_prng_dtype(read.info.dtype)
    return RestoreArgs(np.ndarray if is_host else None, read.dtype)
