"""How one leaf of a result comes about: what is read for it, and what is done with that."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

from msgspec import Struct

from orbit_ckpt._src.tree.keypath import NamePath

Shape = tuple[int, ...]


class ArrayInfo(Struct, frozen=True):
    """What is known of a value before it is read.

    Attributes:
        shape: Its shape, None if unknown.
        dtype: Its dtype, None if unknown.
    """

    shape: Shape | None = None
    dtype: object = None


UNKNOWN = ArrayInfo()


class Read(Struct, frozen=True):
    """A stored leaf, as it is or cast.

    Attributes:
        names: Its names in the checkpoint.
        info: What is known of it.
        dtype: What it is cast to as it is read, None for the stored dtype.
        args: How it is read, None if that is left to what reads it.
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
        action: What it does, in one word.
        fn: The function.
        inputs: What it is given.
        info: What is known of the result.
        on_jax: Whether it is given arrays of JAX, else of numpy.
        stack_axis: If it stacks arrays, along which axis.
        is_cut: Whether its results are parts of the array that it is given, and of its memory.
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
        index: Which.
        info: What is known of it.
    """

    of: Apply
    index: int
    info: ArrayInfo = UNKNOWN


class FromTarget(Struct, frozen=True):
    """The target's own leaf.

    Attributes:
        info: Nothing is known of it.
    """

    info: ArrayInfo = UNKNOWN


Node = Read | Apply | Part | FromTarget


def inputs_of(node: Node) -> tuple[Node, ...]:
    """Return what a node is made of directly."""
    match node:
        case Apply():
            return node.inputs
        case Part():
            return (node.of,)
        case Read() | FromTarget():
            return ()


def node_key(node: Node) -> object:
    """Return what tells a node from others that have another value."""
    match node:
        case Read():
            return node.names, id(node.args), node.dtype
        case Part():
            return id(node.of), node.index
        case Apply() | FromTarget():
            return id(node)


def sources_of(*nodes: Node, known: Container[object] = ()) -> Iterator[Read]:
    """Yield what is read for nodes, once each.

    Args:
        *nodes: The nodes.
        known: Identities of nodes for which nothing is read any more.
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
