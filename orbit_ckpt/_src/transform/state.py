"""Trees as T5X's transformation functions see them: nested dicts of unread leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import is_host_array
from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.guards import is_mapping
from orbit_ckpt._src.runtime.checks import check_callable
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.transform.engine import Leaves, Rule
from orbit_ckpt._src.transform.legacy import Undeclared
from orbit_ckpt._src.transform.nodes import UNKNOWN, Apply, ArrayInfo, Node, Shape
from orbit_ckpt._src.transform.patterns import join_name
from orbit_ckpt._src.tree.build import build_tree
from orbit_ckpt._src.tree.flatten import flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import NamePath

StateFunction = Callable[..., Any]


class StoredValue(Undeclared):
    """Placeholder for a stored leaf: it can be moved, has a shape and a dtype, but no value."""

    __slots__ = ("dtype", "node", "shape")

    def __init__(self, name: str, node: Node) -> None:
        super().__init__(name)
        self.node = node
        self.shape = node.info.shape
        self.dtype = node.info.dtype

    @override
    def error(self) -> TransformError:
        """Return the error that a use of its value raises."""
        return TransformError(
            f"{self._name}: a function of the state uses this leaf, which has not been read. Such "
            "functions move and drop leaves; compute with a Map or Combine rule."
        )

    def __repr__(self) -> str:
        return f"<{self._name}, {self.dtype}{list(self.shape or ())}, not read>"


class StateTransform(Rule, frozen=True):
    """Move leaves with a function of the whole state, as T5X does.

    The function receives the state as nested dicts with string keys. Its leaves have a shape and a
    dtype but no values, since nothing has been read; they can be moved and dropped. Other values
    that it puts into the state, for example from the target, are used unchanged.

    Attributes:
        fn: Called as `fn(state, target, is_resuming=...)`; returns the new state. `target` is the
            target in the same form, `{}` without one.
        is_resuming: Passed to the function: whether an interrupted run resumes, as opposed to a new
            run that starts from another run's checkpoint.
    """

    fn: StateFunction
    is_resuming: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_callable(
            "StateTransform: fn", self.fn, "Give one that takes the state and the target."
        )

    @override
    def apply(self, leaves: Leaves) -> None:
        state = build_tree(
            (tuple(name.split("/")), StoredValue(name, node)) for name, node in leaves.nodes.items()
        )
        target = build_tree((leaves.target or {}).items())
        try:
            made = self.fn(state, target, is_resuming=self.is_resuming)
        except TransformError:
            raise
        except Exception as error:  # a user's function may raise anything; raised again
            raise TransformError(
                f"{_name_of(self.fn)} failed on the state: {type(error).__name__}: {error}"
            ) from error
        found = {join_name(names): value for names, value in _leaves_of(made, self.fn).items()}
        leaves.nodes = {name: _node(name, value) for name, value in found.items()}


def _node(name: str, value: object) -> Node:
    if isinstance(value, StoredValue):
        return value.node
    if isinstance(value, jax.ShapeDtypeStruct):
        raise TransformError(
            f"{name}: a function of the state puts {value} there, which is no value. Give a target "
            "that has values."
        )

    def given() -> object:
        return value

    if is_host_array(value) or isinstance(value, jax.Array):
        return Apply("given", given, (), ArrayInfo(value.shape, value.dtype))
    return Apply("given", given, (), UNKNOWN)


class LeafInfo(Struct, frozen=True):
    """A leaf as a function on save sees it.

    Attributes:
        name: Its keys joined by slashes.
        shape: Its shape, None if it is not an array.
        dtype: Its dtype, None if it is not an array.
    """

    name: str
    shape: Shape | None
    dtype: object


def transform_state(tree: object, functions: Sequence[StateFunction]) -> object:
    """Apply functions to a tree in the form of nested dicts.

    Args:
        tree: The tree.
        functions: Each receives the state and a tree of `LeafInfo` like it, and returns two such
            trees; applied in order.

    Raises:
        TransformError: A function returned trees of different structure.
    """
    flat = flatten(tree)
    pairs = list(zip(flat.names, flat.values, strict=True))
    state: Any = build_tree(pairs)
    infos: Any = build_tree([(names, _info(names, value)) for names, value in pairs])
    for fn in functions:
        state, infos = fn(state, infos)
        names, described = set(_leaves_of(state, fn)), set(_leaves_of(infos, fn))
        if names != described:
            differing = shorten_list(sorted(map(join_name, names ^ described)))
            raise TransformError(
                f"{_name_of(fn)} returned a state and infos of different structure: {differing} "
                "are in one of them only. Change both alike."
            )
    return state


def _info(names: NamePath, value: object) -> object:
    if is_empty_node(value):
        return value
    return LeafInfo(join_name(names), getattr(value, "shape", None), getattr(value, "dtype", None))


def _leaves_of(state: object, fn: StateFunction) -> dict[NamePath, object]:
    if not is_mapping(state):
        raise TransformError(
            f"{_name_of(fn)} returned {type(state).__name__}, expected the state as a nested dict."
        )
    flat = flatten(state)
    pairs = zip(flat.names, flat.values, strict=True)
    return {names: value for names, value in pairs if not is_empty_node(value)}


def _name_of(fn: StateFunction) -> str:
    return getattr(fn, "__qualname__", repr(fn))
