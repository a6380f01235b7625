"""Rules that compute leaves from the values of other leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import as_dtype, check_dtype, is_prng_dtype
from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.guards import is_sequence
from orbit_ckpt._src.runtime.checks import check_axes, check_axis, check_callable, check_int, show
from orbit_ckpt._src.transform import arrays
from orbit_ckpt._src.transform.engine import Leaves, PatternRule, Rule
from orbit_ckpt._src.transform.nodes import UNKNOWN, Apply, Node, Part, Read
from orbit_ckpt._src.transform.patterns import Pattern, check_template, expand

Kind = Literal["numpy", "jax"]
"""The arrays that a function is called with."""


class Map(PatternRule, frozen=True):
    """Compute a leaf from its value.

    A result computed from JAX arrays is a JAX array; other results are unchanged.

    Attributes:
        pattern: Which leaves.
        fn: Maps the value, and the name if `with_name` is set, to the new value. It may change the
            value in place.
        on: Whether it receives NumPy or JAX arrays; typed keys are always JAX arrays.
        with_name: Also pass the name of the leaf.
        allow_unused: As in `Rename`.
    """

    fn: Callable[..., Any]
    on: Kind = "numpy"
    with_name: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_callable("Map: fn", self.fn, "Give one that takes a value, or also its name.")

    @override
    def apply(self, leaves: Leaves) -> None:
        leaves.replace(self.pattern, self.allow_unused, self._node)

    def _node(self, name: str, node: Node) -> Node:
        fn = partial(_call_with_name, self.fn, name) if self.with_name else self.fn
        return Apply("map", fn, (node,), on_jax=self.on == "jax")


def _call_with_name(fn: Callable[..., object], name: str, value: object) -> object:
    return fn(value, name)


class Combine(Rule, frozen=True):
    r"""Compute one leaf from several.

    `Combine(("**/q", r"\1/k", r"\1/v"), r"\1/qkv", concatenate)` fuses the projections of every
    block.

    Attributes:
        inputs: A pattern for the first input, and templates for the others.
        to: Template of the result's name.
        fn: Receives the values of the inputs, in order.
        on: As in `Map`.
        keep: Keep the inputs.
        overwrite: As in `Rename`.
        allow_unused: As in `Rename`.
    """

    inputs: Sequence[Pattern]
    to: str
    fn: Callable[..., Any]
    on: Kind = "numpy"
    keep: bool = False
    overwrite: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_names("Combine: inputs", self.inputs)
        check_callable("Combine: fn", self.fn, "Give one that takes the values of the inputs.")
        for template in self.inputs[1:]:
            if isinstance(template, re.Pattern) or "*" in template:
                raise ValueError(
                    f"Combine: {template!r} is a pattern; only the first input is one, the others "
                    r"refer to what it matches: \1."
                )
            check_template(template, self.inputs[0])
        check_template(self.to, self.inputs[0])

    @override
    def apply(self, leaves: Leaves) -> None:
        made: list[tuple[str, Node]] = []
        used: set[str] = set()
        for name, match in leaves.match_values(self.inputs[0], self.allow_unused):
            inputs = [name, *(expand(str(template), match) for template in self.inputs[1:])]
            missing = [e for e in inputs if not leaves.has_value(e)]
            if missing:
                raise leaves.error(f"needs {', '.join(missing)} for {name}; there is no such leaf")
            nodes = tuple(map(leaves.get, inputs))
            made.append(
                (expand(self.to, match), Apply("combine", self.fn, nodes, on_jax=self.on == "jax"))
            )
            used.update(inputs)
        if not self.keep:
            for name in used:
                del leaves.nodes[name]
        leaves.put(made, overwrite=self.overwrite)


class Split(PatternRule, frozen=True):
    """Compute several leaves from one.

    Without a function, parts of a NumPy array along its first axis are views that share one block
    of memory, which lives as long as any of them.

    Attributes:
        pattern: Which leaves.
        to: Templates of the results' names.
        fn: Maps the value to one value per name. Without it, the array is cut into equal parts.
        axis: Where to cut without a function.
        on: As in `Map`.
        overwrite: As in `Rename`.
        allow_unused: As in `Rename`.
    """

    to: Sequence[str]
    fn: Callable[..., Sequence[Any]] | None = None
    axis: int = -1
    on: Kind = "numpy"
    overwrite: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_names("Split: to", self.to)
        check_callable("Split: fn", self.fn, "Give one that takes the value.")
        check_axis("Split: axis", self.axis)
        for template in self.to:
            check_template(template, self.pattern)

    @override
    def apply(self, leaves: Leaves) -> None:
        count = len(self.to)
        fn = self.fn or partial(arrays.split, count=count, axis=self.axis)
        made: list[tuple[str, Node]] = []
        for name, match in leaves.match_values(self.pattern, self.allow_unused):
            node = leaves.pop(name)
            info = UNKNOWN
            if self.fn is None:
                info = leaves.infer(name, arrays.split_info, node.info, count, self.axis)
            on_jax = self.fn is not None and self.on == "jax"
            cut = partial(_call_split, fn, count, name)
            parts = Apply("split", cut, (node,), on_jax=on_jax, is_cut=self.fn is None)
            made += [
                (expand(template, match), Part(parts, index, info))
                for index, template in enumerate(self.to)
            ]
        leaves.put(made, overwrite=self.overwrite)


def _call_split(
    fn: Callable[[object], Sequence[object]], count: int, name: str, value: object
) -> Sequence[object]:
    parts = fn(value)
    if len(parts) != count:
        raise TransformError(
            f"Split of {name}: the function returned {len(parts)} values, not {count}."
        )
    return parts


class Stack(PatternRule, frozen=True):
    r"""Stack arrays whose names differ in a number.

    `Stack("layers_*/**", r"layers/\2")` turns unrolled layers into scanned ones.

    Attributes:
        pattern: Which leaves.
        to: Template of the stack's name; leaves with equal results are stacked.
        axis: The new axis.
        number: Which wildcard or group of the pattern is the number.
        first: The number of the first array; the others follow without gaps.
        overwrite: As in `Rename`.
        allow_unused: As in `Rename`.
    """

    to: str
    axis: int = 0
    number: int = 1
    first: int = 0
    overwrite: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("Stack: number", self.number, least=1)
        check_axis("Stack: axis", self.axis)
        check_int("Stack: first", self.first, least=0)
        check_template(rf"\{self.number}", self.pattern)
        check_template(self.to, self.pattern)

    @override
    def apply(self, leaves: Leaves) -> None:
        # Invariant: a stack's members are exactly the numbers first, first + 1, ...: `_stacks`
        # rejects two leaves with one number, and the gap check any missing number. The position
        # along the new axis is thus `number - first`, whatever the order of names (`10` sorts
        # before `9`). Members leave `nodes` before any stack is added, so a stack may reuse the
        # name of a member.
        made: list[tuple[str, Node]] = []
        for name, members in self._stacks(leaves).items():
            numbers = range(self.first, self.first + len(members))
            gap = next((number for number in numbers if number not in members), None)
            if gap is not None:
                raise leaves.error(
                    f"finds no number {gap} for {name}, but {', '.join(members.values())}"
                )
            nodes = tuple(leaves.pop(members[number]) for number in numbers)
            infos = [node.info for node in nodes]
            info = leaves.infer(name, arrays.stack_info, infos, self.axis)
            fn = partial(arrays.stack, axis=self.axis)
            made.append((name, Apply("stack", fn, nodes, info, stack_axis=self.axis)))
        leaves.put(made, overwrite=self.overwrite)

    def _stacks(self, leaves: Leaves) -> dict[str, dict[int, str]]:
        """Group the leaves by stack and number."""
        stacks: dict[str, dict[int, str]] = {}
        for name, match in leaves.match_values(self.pattern, self.allow_unused):
            number = match.group(self.number) or ""
            if not number.isdecimal():
                raise leaves.error(
                    f"needs a number in {name}, found {number!r}. Say with number= which wildcard "
                    r"it is, or match less: re.compile(r'layers_(\d+)/(.*)')"
                )
            members = stacks.setdefault(expand(self.to, match), {})
            if int(number) in members:
                raise leaves.error(f"would stack {members[int(number)]} and {name} at one place")
            members[int(number)] = name
        return stacks


class Unstack(PatternRule, frozen=True):
    r"""Cut arrays along an axis into arrays whose names hold the index.

    `Unstack("layers/**", r"layers_\g<i>/\1")` turns scanned layers into unrolled ones. The parts
    share memory as for `Split`.

    Attributes:
        pattern: Which leaves.
        to: Template of the parts' names; `\g<i>` is the index.
        axis: The axis to remove.
        overwrite: As in `Rename`.
        allow_unused: As in `Rename`.
    """

    to: str
    axis: int = 0
    overwrite: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_axis("Unstack: axis", self.axis)
        check_template(self.to, self.pattern, more=["i"])
        if r"\g<i>" not in self.to:
            raise ValueError(rf"Unstack: all parts would be called {self.to!r}; put \g<i> into it.")

    @override
    def apply(self, leaves: Leaves) -> None:
        made: list[tuple[str, Node]] = []
        for name, match in leaves.match_values(self.pattern, self.allow_unused):
            node = leaves.pop(name)
            count, info = leaves.infer(name, arrays.unstack_info, node.info, self.axis)
            parts = Apply("unstack", partial(arrays.unstack, axis=self.axis), (node,), is_cut=True)
            made += [
                (expand(self.to.replace(r"\g<i>", str(index)), match), Part(parts, index, info))
                for index in range(count)
            ]
        leaves.put(made, overwrite=self.overwrite)


class Transpose(PatternRule, frozen=True):
    """Permute the axes of arrays.

    Attributes:
        pattern: Which leaves.
        axes: The order of the axes, None for the reverse.
        allow_unused: As in `Rename`.
    """

    axes: Sequence[int] | None = None
    allow_unused: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.axes is not None:
            check_axes("Transpose: axes", self.axes)

    @override
    def apply(self, leaves: Leaves) -> None:
        leaves.replace(self.pattern, self.allow_unused, self._node)

    def _node(self, _: str, node: Node) -> Node:
        info = arrays.transpose_info(node.info, self.axes)
        return Apply("transpose", partial(arrays.transpose, axes=self.axes), (node,), info)


class Cast(PatternRule, frozen=True):
    """Cast arrays and numbers as they are read.

    Integers that do not fit are an error. Leaves that are not numbers, such as strings, `None` and
    typed keys, are unchanged.

    Attributes:
        pattern: Which leaves.
        dtype: A dtype or its name.
        allow_unused: As in `Rename`.
    """

    dtype: object
    allow_unused: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dtype("Cast: dtype", self.dtype)

    @override
    def apply(self, leaves: Leaves) -> None:
        leaves.replace(self.pattern, self.allow_unused, self._node)

    def _node(self, _: str, node: Node) -> Node:
        if is_prng_dtype(node.info.dtype):
            return node
        info = arrays.cast_info(node.info, self.dtype)
        if isinstance(node, Read) and node.dtype is None:
            return Read(node.names, info, as_dtype(self.dtype))
        return Apply("cast", partial(arrays.cast, dtype=self.dtype), (node,), info)


class KeyData(PatternRule, frozen=True):
    """Convert typed PRNG keys to their data, arrays of uint32.

    Attributes:
        pattern: Which leaves.
        allow_unused: As in `Rename`.
    """

    allow_unused: bool = False

    @override
    def apply(self, leaves: Leaves) -> None:
        leaves.replace(self.pattern, self.allow_unused, self._node)

    def _node(self, _: str, node: Node) -> Node:
        return Apply("key data", jax.random.key_data, (node,), on_jax=True)


class WrapKeys(PatternRule, frozen=True):
    """Convert the data of PRNG keys to typed keys.

    Attributes:
        pattern: Which leaves.
        impl: Their implementation.
        allow_unused: As in `Rename`.
    """

    impl: str = "threefry2x32"
    allow_unused: bool = False

    @override
    def apply(self, leaves: Leaves) -> None:
        leaves.replace(self.pattern, self.allow_unused, self._node)

    def _node(self, _: str, node: Node) -> Node:
        wrap = partial(jax.random.wrap_key_data, impl=self.impl)
        return Apply("wrap keys", wrap, (node,), on_jax=True)


def _check_names(name: str, value: object) -> None:
    if not is_sequence(value) or not value:
        found = show(value) if value else repr(value)
        raise ValueError(f"{name} is {found}; give a list of at least one.")
