"""Compute leaves from stored ones, some at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from orbit_ckpt.arrays.dtypes import is_prng_dtype
from orbit_ckpt.errors import TransformError
from orbit_ckpt.handlers.base import RestoreArgs
from orbit_ckpt.metadata.schema import JAX_ARRAY, LeafRecord
from orbit_ckpt.pytree.target import restore_args_of
from orbit_ckpt.pytree.view import View, nodes_by_source
from orbit_ckpt.transform.nodes import Apply, FromTarget, Node, Part, Read, sources_of
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
        values: dict[_Key, object] = {}
        for reads in _in_turn(sources):
            records = [view.stored[names] for names in reads]
            args = {
                names: source_args(source, view.stored[names]) for names, source in reads.items()
            }
            found = await read(records, args)
            values |= {_key(source): found[names] for names, source in reads.items()}
        evaluate = _Evaluation(values)
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


_Key = tuple[NamePath, int, object]
"""A stored leaf and how it is read."""


def _key(read: Read) -> _Key:
    return read.names, id(read.args), read.dtype


def _in_turn(sources: Sequence[Read]) -> list[dict[NamePath, Read]]:
    """Return what is read, by names; a leaf that is read in several ways is in several of them."""
    turns: list[dict[NamePath, Read]] = []
    for read in {_key(source): source for source in sources}.values():
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
    """Evaluates nodes, each once."""

    def __init__(self, values: Mapping[_Key, object]) -> None:
        self._values = values
        self._done: dict[int, object] = {}

    def __call__(self, names: NamePath, node: Node) -> object:
        """Return the value of a node.

        Raises:
            TransformError: A function has failed.
        """
        match node:
            case Read():
                return self._values[_key(node)]
            case Part():
                return cast(Sequence[object], self(names, node.of))[node.index]
            case Apply():
                if id(node) not in self._done:
                    self._done[id(node)] = self._apply(names, node)
                return self._done[id(node)]
            case FromTarget():
                raise TransformError(
                    f"{format_path(names)}: a rule computes with a leaf that is taken from the "
                    "target; apply it to the target yourself."
                )

    def _apply(self, names: NamePath, node: Apply) -> object:
        inputs = [self(names, part) for part in node.inputs]
        if node.on_jax:
            inputs = [_to_jax(value) for value in inputs]
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


def _to_jax(value: object) -> object:
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def _describe(value: object) -> str:
    shape = getattr(value, "shape", None)
    if shape is None:
        return repr(value)[:60]
    dtype = getattr(value, "dtype", "")
    kind = "keys" if isinstance(value, jax.Array) and is_prng_dtype(value.dtype) else dtype
    return f"{kind}{list(cast(Sequence[int], shape))}"
