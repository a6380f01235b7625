"""Evaluate what rules compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray, is_prng_dtype
from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.transform.nodes import Apply, FromTarget, Node, Part, Read, identity, inputs_of
from orbit_ckpt._src.tree.keypath import NamePath, format_path
from orbit_ckpt._src.type_handlers.array_target import check_width


class Evaluation:
    """Evaluates nodes, each once.

    Functions may change what they are given: of several that are given one value, only the last
    has the value itself, which is then forgotten.
    """

    def __init__(self, values: dict[object, object], nodes: Iterable[Node]) -> None:
        """Prepare an evaluation.

        Args:
            values: The values of all nodes that are not to be evaluated, by their identities; they
                go as they are used.
            nodes: What will be asked for.
        """
        self._values = values
        self._uses: Counter[object] = Counter()
        self._parts: Counter[int] = Counter()
        """How many parts of a result are used."""
        for node in nodes:
            self._count(node)

    def _count(self, node: Node) -> None:
        key = identity(node)
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
        key = identity(node)
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
                return self._part(node, cast(Sequence[object], self(names, node.of)))
            case Apply():
                return self._apply(names, node)
            case Read() | FromTarget():  # the engine lets nothing be computed with these
                raise AssertionError(node)

    def _part(self, node: Part, parts: Sequence[object]) -> object:
        """Return one of several results; a copy where a view would keep much else in memory."""
        part = parts[node.index]
        if not node.of.is_cut or not isinstance(part, np.ndarray):
            return part
        host = cast(HostArray, part)
        is_lean = host.flags.c_contiguous and self._parts[id(node.of)] == len(parts)
        return host if is_lean else host.copy()

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
