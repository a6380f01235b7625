"""Hypothesis strategies of rules that mostly fit the leaves they are drawn for; needs `hypothesis`.

Names are those of leaves: their keys joined by slashes. A rule that does not fit raises
`TransformError` when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from orbit_ckpt._src.transform.patterns import Pattern
from orbit_ckpt.transform import (
    AssignmentMap,
    Cast,
    Copy,
    Drop,
    Rename,
    Rule,
    Split,
    Stack,
    Transpose,
    Unstack,
)

DTYPES = ("float32", "bfloat16", "int32", "uint8")
"""Dtypes that drawn rules cast to."""


def seldom() -> st.SearchStrategy[bool]:
    """Draw True in a fifth of cases."""
    return st.integers(0, 4).map(lambda n: n == 3)  # the ends of a range are drawn more often


def axes() -> st.SearchStrategy[int]:
    """Draw an axis, mostly the first."""
    return st.sampled_from([0, 0, -1, 1])


def options() -> st.SearchStrategy[dict[str, Any]]:
    """Draw the options that all rules with names have."""
    return st.fixed_dictionaries({"overwrite": seldom(), "allow_unused": st.booleans()})


@st.composite
def patterns(draw: st.DrawFn, names: Sequence[str]) -> tuple[Pattern, int]:
    """Draw a pattern that matches some of the names, and how many references it has."""
    keys = draw(st.sampled_from(names)).split("/")
    at = draw(st.integers(0, len(keys) - 1))
    before, key, after = keys[:at], keys[at], keys[at + 1 :]
    escaped = list(map(re.escape, keys))
    found: list[tuple[Pattern, int]] = [
        ("/".join(keys), 0),
        ("/".join([*before, "*", *after]), 1),
        ("/".join([*before, f"{key[:1]}*", *after]), 1),
        ("/".join([*before, "*", *["*"] * len(after)]), 1 + len(after)),
        ("/".join([*before, "**"]), 1),
        ("/".join(["**", *after]), 1) if after else ("**", 1),
        ("/".join([*before, "**", *after]), 1),
        (f"**/{key}/**" if after else f"**/{key}", 2 if after else 1),
        (re.compile("/".join([*escaped[:at], "(.*)"])), 1),
        (re.compile(rf"(?P<head>.*/)?{escaped[-1]}"), 1),
        (re.compile("|".join([f"({'/'.join(escaped)})", "(.)"])), 2),
        ("/".join(keys), 0),
    ]
    return draw(st.sampled_from(found))


@st.composite
def templates(draw: st.DrawFn, names: Sequence[str], count: int, *more: str) -> str:
    """Draw a template with all references most of the time, so that new names differ.

    Args:
        draw: Draws.
        names: Names that it may begin with.
        count: How many references the pattern has.
        *more: Further parts that it must have.
    """
    references = [rf"\{i + 1}" for i in range(count)]
    if draw(seldom()):
        references = draw(st.permutations(references))[: draw(st.integers(0, count))]
    fresh = draw(st.sampled_from(["n0", "n1/m", "n2", draw(st.sampled_from(names)).split("/")[0]]))
    text = "/".join([fresh, *more, *references])
    shorter = text.removeprefix(f"{fresh}/")
    return draw(st.sampled_from([text, text, text.replace("/\\", "_\\", 1), shorter]))


@st.composite
def renames(draw: st.DrawFn, names: Sequence[str]) -> Rule:
    """Draw a rule that renames or copies leaves."""
    pattern, count = draw(patterns(names))
    rule = draw(st.sampled_from([Rename, Rename, Copy]))
    return rule(pattern, draw(templates(names, count)), **draw(options()))


@st.composite
def casts(draw: st.DrawFn, names: Sequence[str]) -> Rule:
    """Draw a rule that casts arrays."""
    return Cast(draw(patterns(names))[0], draw(st.sampled_from(DTYPES)))


@st.composite
def transposes(draw: st.DrawFn, names: Sequence[str]) -> Rule:
    """Draw a rule that transposes arrays."""
    drawn = draw(st.sampled_from([None, None, (0,), (1, 0), (-1, 0)]))
    return Transpose(draw(patterns(names))[0], drawn)


@st.composite
def splits(draw: st.DrawFn, names: Sequence[str]) -> Rule:
    """Draw a rule that splits arrays into equal parts."""
    pattern, count = draw(patterns(names))
    to = draw(templates(names, count))
    parts = tuple(f"{to}/{i}" for i in range(draw(st.integers(1, 3))))
    return Split(pattern, parts, axis=draw(axes()), **draw(options()))


@st.composite
def unstacks(draw: st.DrawFn, names: Sequence[str]) -> Rule:
    """Draw a rule that makes every slice of an array a leaf."""
    pattern, count = draw(patterns(names))
    to = draw(templates(names, count, r"\g<i>"))
    return Unstack(pattern, to, draw(axes()), **draw(options()))


@st.composite
def stacks(draw: st.DrawFn, names: Sequence[str]) -> Rule:
    """Draw a rule that stacks leaves whose names differ in a number; all names must have one."""
    before, number, after = split_number(draw(st.sampled_from(names)))
    axis = draw(axes())
    below = after.startswith("/") and draw(st.booleans())
    if draw(st.booleans()):
        tail = r"/(?P<rest>.*)" if below else f"({re.escape(after)})"
        pattern = re.compile(rf"{re.escape(before)}(?P<i>\d+){tail}")
        return Stack(pattern, rf"stacked/{number}/\2", axis)
    if below:
        return Stack(f"{before}*/**", r"stacked/\2", axis)
    return Stack(f"{before}*{after}", "stacked", axis)


def split_number(name: str) -> Sequence[str]:
    """Return a name in three parts, the second of which is its first number; or in one."""
    return re.split(r"(\d+)", name, maxsplit=1)


@st.composite
def assignments(draw: st.DrawFn, names: Sequence[str], target: Sequence[str]) -> Rule:
    """Draw a rule that assigns leaves of the checkpoint to leaves of a target."""
    pairs: list[tuple[Pattern, str | None]] = []
    for _ in range(draw(st.integers(1, 2))):
        pattern, count = draw(patterns(target))
        source = draw(st.sampled_from(names))
        if count == 1 and str(pattern).endswith("/**"):
            source = source.partition("/")[0] + r"/\1"
        pairs.append((pattern, draw(st.sampled_from([source, source, None]))))
    return AssignmentMap(pairs, require_all=draw(st.booleans()))


def drops(names: Sequence[str]) -> st.SearchStrategy[Rule]:
    """Draw a rule that drops leaves."""
    return patterns(names).map(lambda drawn: Drop(drawn[0]))


def rules(names: Sequence[str]) -> st.SearchStrategy[Rule]:
    """Draw a rule of any kind that needs no function and no target.

    Args:
        names: The names of the leaves, at least one.
    """
    numbered = [name for name in names if len(split_number(name)) > 1]
    kinds = [renames, renames, casts, transposes, splits, unstacks, drops]
    return st.one_of(*(kind(names) for kind in kinds), *([stacks(numbered)] if numbered else []))


def rule_lists(names: Sequence[str], *, max_size: int = 4) -> st.SearchStrategy[list[Rule]]:
    """Draw rules for the leaves of a checkpoint, to be used one after the other."""
    return st.lists(rules(names), min_size=1, max_size=max_size)
