"""Rules that rename, drop, merge, split and compute leaves while a checkpoint is restored.

Rules run in the order written, each on the leaves that the rule before has left. What they match
and make are names of leaves; see `patterns` for how those are written. Nothing is read before all
rules have been applied to the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import as_dtype
from orbit_ckpt._src.runtime.checks import check_callable
from orbit_ckpt._src.transform.patterns import Pattern, check_template, compile_pattern

Kind = Literal["numpy", "jax"]
"""What functions are given arrays as."""


class Rename(Struct, frozen=True, repr_omit_defaults=True):
    r"""Give leaves other names.

    `Rename("params/layers_*/**", r"params/blocks/\1/\2")` moves every layer.

    Attributes:
        pattern: Which leaves.
        to: Their names.
        overwrite: Whether a leaf that has the name already is dropped; else that is an error.
        allow_unused: Whether there need be no such leaf.
    """

    pattern: Pattern
    to: str
    overwrite: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        check_template(self.to, self.pattern)


class Copy(Struct, frozen=True, repr_omit_defaults=True):
    """Give leaves further names.

    Attributes:
        pattern: Which leaves.
        to: Their further names.
        overwrite: As in `Rename`.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    to: str
    overwrite: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        check_template(self.to, self.pattern)


class Drop(Struct, frozen=True, repr_omit_defaults=True):
    """Leave leaves out.

    Attributes:
        pattern: Which leaves.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    allow_unused: bool = False

    def __post_init__(self) -> None:
        compile_pattern(self.pattern)


class Fallback(Struct, frozen=True, repr_omit_defaults=True):
    """Take leaves from the target, whether the checkpoint has them or not.

    Attributes:
        pattern: Which leaves of the target.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    allow_unused: bool = False

    def __post_init__(self) -> None:
        compile_pattern(self.pattern)


class Map(Struct, frozen=True, repr_omit_defaults=True):
    """Compute a leaf from its value.

    Arrays that are computed from some array of JAX are arrays of JAX; others are what the function
    returned.

    Attributes:
        pattern: Which leaves.
        fn: Takes the value, and the name if `with_name` is set; returns the new one. It may change
            the value in place.
        on: Whether it is given arrays of numpy or of JAX; typed keys are always JAX's.
        with_name: Whether it is given the name too.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    fn: Callable[..., Any]
    on: Kind = "numpy"
    with_name: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        compile_pattern(self.pattern)
        check_callable("Map: fn", self.fn, "Give one that takes a value, or also its name.")


class Combine(Struct, frozen=True, repr_omit_defaults=True):
    r"""Compute one leaf from several.

    `Combine(("**/q", r"\1/k", r"\1/v"), r"\1/qkv", concatenate)` fuses the projections of every
    block.

    Attributes:
        inputs: A pattern for the first input, and templates for the others.
        to: Name of the result, a template.
        fn: Takes the values of the inputs in their order.
        on: As in `Map`.
        keep: Whether the inputs stay.
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
        if isinstance(self.inputs, str) or not self.inputs:
            raise ValueError(f"Combine: inputs is {self.inputs!r}; give a list of at least one.")
        for template in self.inputs[1:]:
            if isinstance(template, re.Pattern) or "*" in template:
                raise ValueError(
                    f"Combine: {template!r} is a pattern; only the first input is one, the others "
                    r"refer to what it matches: \1."
                )
            check_template(template, self.inputs[0])
        check_template(self.to, self.inputs[0])


class Split(Struct, frozen=True, repr_omit_defaults=True):
    """Compute several leaves from one.

    Without a function, parts of a numpy array along its first axis are not copied: they are views
    of one block of memory, which lives as long as any of them.

    Attributes:
        pattern: Which leaves.
        to: Names of the results, templates.
        fn: Takes the value; returns as many values as there are names. Without it the array is cut
            into equal parts.
        axis: Where to cut without a function.
        on: What a function is given, as in `Map`.
        overwrite: As in `Rename`.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    to: Sequence[str]
    fn: Callable[..., Sequence[Any]] | None = None
    axis: int = -1
    on: Kind = "numpy"
    overwrite: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        if not self.to or isinstance(self.to, str):
            raise ValueError(f"Split: the names of the results are {self.to!r}; give a tuple.")
        for template in self.to:
            check_template(template, self.pattern)


class Stack(Struct, frozen=True, repr_omit_defaults=True):
    r"""Stack arrays whose names differ in a number.

    `Stack("layers_*/**", r"layers/\2")` makes the scanned form of unrolled layers.

    Attributes:
        pattern: Which leaves.
        to: Name of the stacked array; leaves with the same one are stacked.
        axis: The new axis.
        number: Which wildcard or group of the pattern is the number.
        first: The number of the first array; they count from there without a gap.
        overwrite: As in `Rename`.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    to: str
    axis: int = 0
    number: int = 1
    first: int = 0
    overwrite: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        check_template(rf"\{self.number}", self.pattern)
        check_template(self.to, self.pattern)


class Unstack(Struct, frozen=True, repr_omit_defaults=True):
    r"""Cut arrays along an axis into arrays whose names have the index.

    `Unstack("layers/**", r"layers_\g<i>/\1")` makes the unrolled form of scanned layers. The parts
    share memory as those of `Split` do.

    Attributes:
        pattern: Which leaves.
        to: Names of the parts; `\g<i>` is the index.
        axis: The axis that goes.
        overwrite: As in `Rename`.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    to: str
    axis: int = 0
    overwrite: bool = False
    allow_unused: bool = False

    def __post_init__(self) -> None:
        check_template(self.to, self.pattern, more=["i"])
        if r"\g<i>" not in self.to:
            raise ValueError(rf"Unstack: all parts would be called {self.to!r}; put \g<i> into it.")


class Transpose(Struct, frozen=True, repr_omit_defaults=True):
    """Permute the axes of arrays.

    Attributes:
        pattern: Which leaves.
        axes: The order of the axes, None for the reverse.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    axes: Sequence[int] | None = None
    allow_unused: bool = False

    def __post_init__(self) -> None:
        compile_pattern(self.pattern)


class Cast(Struct, frozen=True, repr_omit_defaults=True):
    """Cast arrays and numbers while they are read.

    Integers that do not fit are an error. What is no number, such as a string, `None` or a typed
    key, stays as it is.

    Attributes:
        pattern: Which leaves.
        dtype: What to, anything that names a dtype.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    dtype: object
    allow_unused: bool = False

    def __post_init__(self) -> None:
        compile_pattern(self.pattern)
        as_dtype(self.dtype)


class KeyData(Struct, frozen=True, repr_omit_defaults=True):
    """Turn typed PRNG keys into their data, arrays of uint32.

    Attributes:
        pattern: Which leaves.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    allow_unused: bool = False


class WrapKeys(Struct, frozen=True, repr_omit_defaults=True):
    """Turn the data of PRNG keys into typed keys.

    Attributes:
        pattern: Which leaves.
        impl: Their implementation.
        allow_unused: As in `Rename`.
    """

    pattern: Pattern
    impl: str = "threefry2x32"
    allow_unused: bool = False


class AssignmentMap(Struct, frozen=True, repr_omit_defaults=True):
    """Say of leaves of the target which leaves of the checkpoint they are; T5X's.

    All assignments are made at once, so names may be exchanged. Leaves of the checkpoint that are
    assigned are not used under their own name; the others stay.

    Attributes:
        rules: Patterns for names of the target, each with a template for the name in the
            checkpoint, or None to take the leaf from the target. The first that matches counts.
        require_all: Whether every pattern has to match something.
    """

    rules: Mapping[Pattern, str | None] | Sequence[tuple[Pattern, str | None]]
    require_all: bool = True

    def __post_init__(self) -> None:
        for pattern, template in self.pairs:
            if template is not None:
                check_template(template, pattern)

    @property
    def pairs(self) -> list[tuple[Pattern, str | None]]:
        """The rules in their order."""
        return list(self.rules.items() if isinstance(self.rules, Mapping) else self.rules)


class StateTransform(Struct, frozen=True, repr_omit_defaults=True):
    """Move leaves with a function of the whole state, such as those that T5X takes.

    The function gets the state as nested dicts with string keys. Its leaves have a shape and a
    dtype but no values, which have not been read; they can be moved and dropped. What else it
    puts into the state, for example from the target, is taken as it is.

    Attributes:
        fn: Called as `fn(state, target, is_resuming=...)`; returns the new state. `target` is the
            target in the same form, `{}` if there is none.
        is_resuming: Whether the run goes on where it was interrupted, rather than being started
            from another one's checkpoint; the function is told.
    """

    fn: Callable[..., Any]
    is_resuming: bool = False


Rule = (
    Rename
    | Copy
    | Drop
    | Fallback
    | Map
    | Combine
    | Split
    | Stack
    | Unstack
    | Transpose
    | Cast
    | KeyData
    | WrapKeys
    | AssignmentMap
    | StateTransform
)
