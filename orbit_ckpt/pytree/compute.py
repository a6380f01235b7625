"""Compute leaves from stored ones, some at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from orbit_ckpt.arrays.dtypes import HostArray, is_prng_dtype
from orbit_ckpt.errors import TransformError
from orbit_ckpt.handlers.array import check_width
from orbit_ckpt.handlers.base import RestoreArgs
from orbit_ckpt.metadata.schema import JAX_ARRAY, LeafRecord
from orbit_ckpt.pytree.target import restore_args_of
from orbit_ckpt.pytree.view import View, nodes_by_source
from orbit_ckpt.transform.nodes import Apply, FromTarget, Node, Part, Read, inputs_of, sources_of
from orbit_ckpt.tree.keypath import NamePath, format_path

_GROUP_LEAVES = 256
"""Most sources that are held at once, unless one result needs more."""

ReadLeaves = Callable[
    [Sequence[LeafRecord], Mapping[NamePath, RestoreArgs]],
    Awaitable[Mapping[NamePath, object]],
]


async def compute_leaves(
    view: View,
    wanted: set[NamePath],
    read: ReadLeaves,
    place: Callable[[NamePath, object, bool], object],
) -> dict[NamePath, object]:
    """Return computed leaves; what they are computed from is dropped as soon as it is not needed.

    Args:
        view: What there is.
        wanted: Which of its computed leaves.
        read: Reads stored leaves.
        place: Makes a computed value what the caller asked for; is told whether it comes from
            arrays of JAX.

    Raises:
        TransformError: A function has failed.
    """
    results: dict[NamePath, object] = {}
    for group in groups_of(view, wanted):
        sources = [source for node in group.values() for source in sources_of(node)]
        evaluate = _Evaluation(await _read(sources, view, read), group.values())
        for names, node in group.items():
            from_jax = any(
                view.stored[source.names].typestr == JAX_ARRAY for source in sources_of(node)
            )
            value = evaluate(names, node)
            results[names] = value if view.is_final else place(names, value, from_jax)
    return results


def groups_of(view: View, wanted: Container[NamePath]) -> Iterator[Mapping[NamePath, Node]]:
    """Yield computed leaves in groups that are computed one after the other."""
    nodes = {names: node for names, node in view.computed.items() if names in wanted}
    return _batches(nodes_by_source(nodes))


async def _read(sources: Sequence[Read], view: View, read: ReadLeaves) -> dict[object, object]:
    """Return stored values by the identities of their nodes."""
    values: dict[object, object] = {}
    for reads in _in_turn(sources):
        records = [view.stored[names] for names in reads]
        args = {names: source_args(source, view.stored[names]) for names, source in reads.items()}
        found = await read(records, args)
        values |= {_identity(source): found[names] for names, source in reads.items()}
    return values


def _batches(groups: Sequence[Mapping[NamePath, Node]]) -> Iterator[dict[NamePath, Node]]:
    """Yield groups, small ones together."""
    batch: dict[NamePath, Node] = {}
    held = 0
    for group in groups:
        count = sum(1 for node in group.values() for _ in sources_of(node))
        if batch and held + count > _GROUP_LEAVES:
            yield batch
            batch, held = {}, 0
        batch = {**batch, **group}
        held += count
    if batch:
        yield batch


def _in_turn(sources: Sequence[Read]) -> list[dict[NamePath, Read]]:
    """Return what is read, by names; a leaf that is read in several ways is in several of them."""
    turns: list[dict[NamePath, Read]] = []
    for read in {_identity(source): source for source in sources}.values():
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


class _Evaluation:
    """Evaluates nodes, each once.

    Functions may change what they are given: of several that are given one value, only the last
    has the value itself, which is then forgotten.
    """

    def __init__(self, values: dict[object, object], nodes: Iterable[Node]) -> None:
        self._values = values
        self._uses: Counter[object] = Counter()
        for node in nodes:
            self._count(node)

    def _count(self, node: Node) -> None:
        key = _identity(node)
        self._uses[key] += 1
        if self._uses[key] == 1:
            for part in inputs_of(node):
                self._count(part)

    def __call__(self, names: NamePath, node: Node) -> object:
        """Return the value of a node.

        Raises:
            TransformError: A function has failed.
            UnsupportedLeafError: A function on arrays of JAX needs JAX's 64-bit mode.
        """
        key = _identity(node)
        if key not in self._values:
            self._values[key] = self._make(names, node)
        self._uses[key] -= 1
        if not self._uses[key]:
            return self._values.pop(key)
        value = self._values[key]
        return cast(HostArray, value).copy() if isinstance(value, np.ndarray) else value

    def _make(self, names: NamePath, node: Node) -> object:
        match node:
            case Part():
                return cast(Sequence[object], self(names, node.of))[node.index]
            case Apply():
                return self._apply(names, node)
            case Read() | FromTarget():  # the engine lets nothing be computed with these
                raise AssertionError(node)

    def _apply(self, names: NamePath, node: Apply) -> object:
        inputs = [self(names, part) for part in node.inputs]
        if node.on_jax:
            inputs = [_to_jax(names, value) for value in inputs]
        else:
            inputs = list(map(_to_numpy, inputs, node.inputs))
        try:
            return node.fn(*inputs)
        except Exception as error:  # a user's function may raise anything; raised again
            if isinstance(error, TransformError):
                raise
            described = ", ".join(map(_describe, inputs))
            raise TransformError(
                f"{format_path(names)}: {node.action} of {described} failed: "
                f"{type(error).__name__}: {error}"
            ) from error


def _identity(node: Node) -> object:
    """Return what tells a node from others; parts of one result are made anew for every use."""
    match node:
        case Read():
            return node.names, id(node.args), node.dtype
        case Part():
            return id(node.of), node.index
        case Apply() | FromTarget():
            return id(node)


def _to_jax(names: NamePath, value: object) -> object:
    if not isinstance(value, np.ndarray):
        return value
    check_width(names, cast(HostArray, value).dtype)
    return jnp.asarray(value)


def _to_numpy(value: object, node: Node) -> object:
    """Return what a function on JAX's arrays has made as an array of numpy; leaves are read so."""
    if isinstance(node, Read) or not isinstance(value, jax.Array) or is_prng_dtype(value.dtype):
        return value
    return np.array(value)


def _describe(value: object) -> str:
    shape = getattr(value, "shape", None)
    if shape is None:
        return repr(value)[:60]
    dtype = getattr(value, "dtype", "")
    kind = "keys" if isinstance(value, jax.Array) and is_prng_dtype(value.dtype) else dtype
    return f"{kind}{list(cast(Sequence[int], shape))}"
