"""Nodes that describe how to compute one leaf of a result: reads, and functions of them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

from msgspec import Struct

from orbit_ckpt._src.tree.keypath import NamePath

Shape = tuple[int, ...]


class ArrayInfo(Struct, frozen=True):
    """Shape and dtype of a value before it is read.

    Attributes:
        shape: Its shape, None if unknown.
        dtype: Its dtype, None if unknown.
    """

    shape: Shape | None = None
    dtype: object = None


UNKNOWN = ArrayInfo()


class Read(Struct, frozen=True):
    """A stored leaf, unchanged or cast.

    Attributes:
        names: Its names in the checkpoint.
        info: Its shape and dtype.
        dtype: The dtype to cast to while reading, None for the stored one.
        args: How to read it, None to leave that to the reader.
        is_empty: Whether it is an empty container or None, with which nothing can be computed.
    """

    names: NamePath
    info: ArrayInfo = UNKNOWN
    dtype: object = None
    args: object = None
    is_empty: bool = False


class Apply(Struct, frozen=True, eq=False):
    """The result of a function of other leaves.

    Attributes:
        action: Short name of the operation.
        fn: The function.
        inputs: Its arguments.
        info: Shape and dtype of the result.
        on_jax: Whether it receives JAX arrays instead of numpy arrays.
        stack_axis: The axis along which it stacks arrays, None if it does not.
        is_cut: Whether its results are parts of its argument and share its memory.
    """

    action: str
    fn: Callable[..., Any]
    inputs: tuple[Node, ...]
    info: ArrayInfo = UNKNOWN
    on_jax: bool = False
    stack_axis: int | None = None
    is_cut: bool = False


class Part(Struct, frozen=True):
    """One of several results of a function.

    Attributes:
        of: The function's results.
        index: Index of this one.
        info: Its shape and dtype.
    """

    of: Apply
    index: int
    info: ArrayInfo = UNKNOWN


class FromTarget(Struct, frozen=True):
    """The target's own leaf.

    Attributes:
        info: Unknown shape and dtype.
    """

    info: ArrayInfo = UNKNOWN


Node = Read | Apply | Part | FromTarget


def inputs_of(node: Node) -> tuple[Node, ...]:
    """Return the direct inputs of a node."""
    match node:
        case Apply():
            return node.inputs
        case Part():
            return (node.of,)
        case Read() | FromTarget():
            return ()


def node_key(node: Node) -> object:
    """Return a key that differs between nodes with different values."""
    match node:
        case Read():
            return node.names, id(node.args), node.dtype
        case Part():
            return id(node.of), node.index
        case Apply() | FromTarget():
            return id(node)


def sources_of(*nodes: Node, known: Container[object] = ()) -> Iterator[Read]:
    """Yield each read that nodes depend on once.

    Args:
        *nodes: The nodes.
        known: Identities of nodes that need no more reads.
    """
    seen: set[object] = set()
    pending = list(reversed(nodes))
    while pending:
        node = pending.pop()
        key = node_key(node)
        if key in seen or key in known:
            continue
        seen.add(key)
        if isinstance(node, Read):
            yield node
        pending += reversed(inputs_of(node))
