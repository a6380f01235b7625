"""Compute leaves from stored ones, in batches."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from orbit_ckpt._src.arrays.dtypes import (
    DType,
    HostArray,
    as_dtype,
    is_host_array,
    is_prng_dtype,
)
from orbit_ckpt._src.arrays.memory import aligned_empty
from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.metadata.schema import JAX_ARRAY, LeafRecord
from orbit_ckpt._src.pytree.restore.target import restore_args_of
from orbit_ckpt._src.pytree.restore.transformed import TransformedTree, nodes_by_source
from orbit_ckpt._src.transform.arrays import as_array
from orbit_ckpt._src.transform.nodes import (
    Apply,
    FromTarget,
    Part,
    Read,
    inputs_of,
    node_key,
    sources_of,
)
from orbit_ckpt._src.transform.rules import Node
from orbit_ckpt._src.tree.keypath import NamePath, format_path
from orbit_ckpt._src.type_handlers.array_target import check_width
from orbit_ckpt._src.type_handlers.base import RestoreArgs

_BATCH_LEAVES = 256
"""Maximum sources held at once, unless one result needs more."""

_BATCH_BYTES = 1 << 26
"""Maximum bytes of sources held at once, unless one result needs more."""

ReadLeaves = Callable[
    [Sequence[LeafRecord], Mapping[NamePath, RestoreArgs]],
    Awaitable[Mapping[NamePath, object]],
]


async def compute_leaves(
    transformed: TransformedTree,
    wanted: set[NamePath],
    read: ReadLeaves,
    place: Callable[[NamePath, object, bool], object],
    *,
    max_bytes: int | None = None,
) -> dict[NamePath, object]:
    """Compute leaves; each source is dropped as soon as it is no longer needed.

    Args:
        transformed: The available leaves.
        wanted: The computed leaves to return.
        read: Reads stored leaves.
        place: Converts a computed value to what the caller requested; its flag says whether the
            value comes from JAX arrays.
        max_bytes: See `groups_of`.

    Raises:
        TransformError: A function has failed.
    """
    is_from_jax = _Origins(transformed.stored)
    fetch = partial(_read, transformed, read)
    results: dict[NamePath, object] = {}
    for batch in groups_of(transformed, wanted, max_bytes):
        nodes = [node for _, node in batch]
        values = {
            node_key(stack): await _fill(names, stack, fetch)
            for names, stack in _large_stacks(batch)
        }
        values |= await fetch(list(sources_of(*nodes, known=values)))
        evaluate = Evaluation(values, nodes)
        for names, node in batch:
            value = evaluate(names, node)
            from_jax = is_from_jax(node) and _is_numeric(value)
            results[names] = value if transformed.is_final else place(names, value, from_jax)
    return results


def groups_of(
    transformed: TransformedTree, wanted: Container[NamePath], max_bytes: int | None = None
) -> Iterator[_Named]:
    """Yield computed leaves in groups that are computed one after the other.

    Args:
        transformed: The available leaves.
        wanted: The computed leaves to return.
        max_bytes: Maximum bytes of sources held at once, unless one result needs more; None for a
            default, which is never exceeded.
    """
    nodes = {names: node for names, node in transformed.computed.items() if names in wanted}
    groups = [list(group.items()) for group in nodes_by_source(nodes)]
    return _batches(groups, min(max_bytes or _BATCH_BYTES, _BATCH_BYTES))


_Fetch = Callable[[Sequence[Read]], Awaitable[dict[object, object]]]

_Named = Sequence[tuple[NamePath, Node]]
"""Nodes with the names of their results."""


class _Origins:
    """Determines whether the sources of a node include JAX arrays."""

    def __init__(self, stored: Mapping[NamePath, LeafRecord]) -> None:
        self._stored = stored
        self._known: dict[object, bool] = {}

    def __call__(self, node: Node) -> bool:
        key = node_key(node)
        if key not in self._known:
            is_jax = isinstance(node, Read) and self._stored[node.names].typestr == JAX_ARRAY
            self._known[key] = is_jax or any(map(self, inputs_of(node)))
        return self._known[key]


def _is_numeric(value: object) -> bool:
    """Return whether JAX could hold a value as an array, unlike text, dates and objects."""
    return not is_host_array(value) or value.dtype.kind not in "SUOmM"


async def _read(
    transformed: TransformedTree, read: ReadLeaves, sources: Sequence[Read]
) -> dict[object, object]:
    """Read stored values, by the identities of their nodes."""
    values: dict[object, object] = {}
    for reads in _in_turn(sources):
        records = [transformed.stored[names] for names in reads]
        args = {
            names: source_args(source, transformed.stored[names]) for names, source in reads.items()
        }
        found = await read(records, args)
        values |= {node_key(source): found[names] for names, source in reads.items()}
    await asyncio.sleep(0)  # the loop variable keeps the last value alive
    return values


async def _fill(names: NamePath, node: Apply, fetch: _Fetch) -> HostArray:
    """Return a stack of arrays, only a few of which are held at a time besides it."""
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
    """Yield the stacks that are filled one input after the other, with their results' names."""
    seen: set[object] = set()
    pending = list(batch)
    while pending:
        names, node = pending.pop()
        if node_key(node) in seen:
            continue
        seen.add(node_key(node))
        if isinstance(node, Apply) and _is_large_stack(node):
            yield names, node
        else:
            pending += [(names, part) for part in inputs_of(node)]


def _is_large_stack(node: Apply) -> bool:
    if node.stack_axis is None or node.info.shape is None or is_prng_dtype(node.info.dtype):
        return False
    return _nbytes(node) > _BATCH_BYTES and all(map(_is_known_row, node.inputs))


def _is_known_row(node: Node) -> bool:
    """Return whether rules that call no function compute a node from leaves of its own."""
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
    """Return the size of a result, 0 if unknown."""
    shape, dtype = node.info.shape, node.info.dtype
    return 0 if shape is None else math.prod(shape) * cast(DType, dtype).itemsize


def _in_turn(sources: Sequence[Read]) -> list[dict[NamePath, Read]]:
    """Group reads by names so that no group reads a leaf in two ways."""
    turns: list[dict[NamePath, Read]] = []
    for read in {node_key(source): source for source in sources}.values():
        turn = next((turn for turn in turns if read.names not in turn), None)
        if turn is None:
            turns.append({read.names: read})
        else:
            turn[read.names] = read
    return turns


def source_args(read: Read, record: LeafRecord) -> RestoreArgs:
    """Return the arguments to read a leaf; arrays become numpy's unless the rule says otherwise.

    Typed keys, which numpy does not have, stay keys.
    """
    if read.args is not None:
        return restore_args_of(read.args)
    is_host = record.typestr == JAX_ARRAY and not is_prng_dtype(read.info.dtype)
    return RestoreArgs(np.ndarray if is_host else None, read.dtype)


class Evaluation:
    """Evaluates nodes, each once.

    Functions may modify their inputs: of several that share a value, only the last receives the
    value itself, which is then dropped.
    """

    def __init__(self, values: dict[object, object], nodes: Iterable[Node]) -> None:
        """Prepare an evaluation.

        Args:
            values: The values of all nodes that are not to be evaluated, by their identities; each
                is removed when used.
            nodes: The nodes that will be requested.
        """
        self._values = values
        self._uses: Counter[object] = Counter()
        self._parts: Counter[int] = Counter()
        """Number of parts of a result in use."""
        for node in nodes:
            self._count(node)

    def _count(self, node: Node) -> None:
        key = node_key(node)
        self._uses[key] += 1
        if self._uses[key] == 1 and key not in self._values:
            if isinstance(node, Part):
                self._parts[id(node.of)] += 1
            for part in inputs_of(node):
                self._count(part)

    def __call__(self, names: NamePath, node: Node) -> object:
        """Return the value of a node.

        Raises:
            TransformError: A function has failed.
            UnsupportedLeafError: A function on arrays of JAX needs JAX's 64-bit mode.
        """
        key = node_key(node)
        if key not in self._values:
            self._values[key] = self._make(names, node)
        self._uses[key] -= 1
        if not self._uses[key]:
            return self._values.pop(key)
        value = self._values[key]
        return value.copy() if is_host_array(value) else value

    def _make(self, names: NamePath, node: Node) -> object:
        match node:
            case Part():
                return self._part(node, cast(Sequence[object], self(names, node.of)))
            case Apply():
                return self._apply(names, node)
            case Read() | FromTarget():  # the engine rejects computations with these
                raise AssertionError(node)

    def _part(self, node: Part, parts: Sequence[object]) -> object:
        """Return one of several results; a copy where a view would keep much other memory alive."""
        part = parts[node.index]
        if not node.of.is_cut or not is_host_array(part):
            return part
        is_lean = part.flags.c_contiguous and self._parts[id(node.of)] == len(parts)
        return part if is_lean else part.copy()

    def _apply(self, names: NamePath, node: Apply) -> object:
        inputs = [self(names, part) for part in node.inputs]
        if node.on_jax:
            inputs = [_to_jax(names, value) for value in inputs]
        else:
            inputs = list(map(_to_numpy, inputs, node.inputs))
        return call(names, node.action, node.fn, inputs)


def call(
    names: NamePath, action: str, fn: Callable[..., object], inputs: Sequence[object]
) -> object:
    """Call a function.

    Raises:
        TransformError: It has failed.
    """
    try:
        return fn(*inputs)
    except Exception as error:  # a user's function may raise anything; raised again
        if isinstance(error, TransformError):
            raise
        described = ", ".join(map(_describe, inputs))
        raise TransformError(
            f"{format_path(names)}: {action} of {described} failed: {type(error).__name__}: {error}"
        ) from error


def _to_jax(names: NamePath, value: object) -> object:
    if not is_host_array(value):
        return value
    check_width(names, value.dtype)
    return jnp.asarray(value)


def _to_numpy(value: object, node: Node) -> object:
    """Convert the result of a function on JAX arrays to numpy, as leaves are read."""
    if isinstance(node, Read) or not isinstance(value, jax.Array) or is_prng_dtype(value.dtype):
        return value
    return np.array(value)


def _describe(value: object) -> str:
    shape: Sequence[int] | None = getattr(value, "shape", None)
    if shape is None:
        return repr(value)[:60]
    dtype = getattr(value, "dtype", "")
    kind = "keys" if isinstance(value, jax.Array) and is_prng_dtype(value.dtype) else dtype
    return f"{kind}{list(shape)}"
