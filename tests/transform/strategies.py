"""Random trees, and rules that mostly fit them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from jax.tree_util import DictKey

from orbit_ckpt._src.transform.patterns import Pattern, split_name
from orbit_ckpt._src.tree.build import PLACEHOLDER, build_tree
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import find_name_collisions
from orbit_ckpt.testing.rule_strategies import (
    assignments,
    casts,
    options,
    patterns,
    renames,
    seldom,
    split_number,
    splits,
    stacks,
    templates,
    transposes,
    unstacks,
)
from orbit_ckpt.transform import (
    Combine,
    Drop,
    Fallback,
    KeyData,
    Map,
    Rule,
    Split,
    WrapKeys,
)
from tests.support import put
from tests.transform.reference import Leaf, Reference, Refused, find, is_key

DTYPES = ["float32", "float32", "int32", "float64", "bfloat16", "int8", "uint16", "bool"]
KEYS = ["a", "b", "w", "q", "x.y", "layer_0", "layer_1", "7"]

# the first and the last of a range are drawn more often
rarely = st.integers(0, 19).map(lambda n: n == 13)


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Any:
    """Draw an array of small numbers that every dtype has, or one that some have not."""
    if shape is None:
        shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 2, 3, 4]), max_size=3)))
    if dtype is None:
        dtype = draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 100)))
    host = rng.integers(0, 7, shape).astype(dtype)
    if dtype == "int32" and draw(seldom()):
        host += 300
    if dtype == "float64" or draw(st.booleans()):
        return host
    if shape and shape[0] == 2 and draw(st.booleans()):
        return put(host, "x", x=2)
    return jnp.asarray(host)


leaves = st.one_of(
    arrays(),
    arrays(),
    arrays(),
    st.integers(0, 6),
    st.sampled_from([0.5, True, np.float32(1.5), np.int64(3), np.float64(2), "text", "", "é"]),
    st.sampled_from([None, {}, []]),
    st.integers(0, 2).map(
        lambda n: jax.random.split(jax.random.key(n), n) if n else jax.random.key(7)
    ),
    st.integers(0, 9).map(lambda n: np.array([n, 1], np.uint32)),
)


@st.composite
def layers(draw: st.DrawFn) -> Any:
    """Draw blocks of one structure, in a dict or a list."""
    shapes = draw(st.lists(st.lists(st.integers(1, 3), max_size=2).map(tuple), max_size=3))
    dtypes = [draw(st.sampled_from(DTYPES)) for _ in shapes]
    blocks = [
        {
            key: draw(arrays(shape, dtype))
            for key, shape, dtype in zip("wqb", shapes, dtypes, strict=False)
        }
        for _ in range(draw(st.integers(1, 3)))
    ]
    named = {f"layer_{i}": block for i, block in enumerate(blocks)}
    return draw(st.sampled_from([blocks, named]))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(KEYS), inner, max_size=4) | st.lists(inner, max_size=3)


inner = st.recursive(leaves, containers, max_leaves=8) | layers()
trees = st.dictionaries(st.sampled_from(KEYS), inner, min_size=1, max_size=4)
trees_without_lists = st.dictionaries(
    st.sampled_from(KEYS), leaves | st.dictionaries(st.sampled_from(KEYS), leaves), min_size=1
)


class Flat(NamedTuple):
    """Leaves by name."""

    tree: Any
    named: dict[str, Any]


def by_name(tree: object) -> dict[str, Any]:
    flat = flatten(tree)
    named = dict(zip(map("/".join, flat.names), flat.values, strict=True))
    assume(len(named) == len(flat.names))
    return named


@st.composite
def saved_trees(draw: st.DrawFn, kinds: st.SearchStrategy[Any] = trees) -> Flat:
    tree = draw(kinds)
    assume(not find_name_collisions(flatten(tree).names))
    return Flat(tree, by_name(tree))


def double(value: Any) -> Any:
    return value + value


def add_in_place(value: Any) -> Any:
    value += 1
    return value


def kind(value: Any) -> str:
    return f"{type(value).__name__}{getattr(value, 'shape', '')}"


def half(value: Any) -> Any:
    return value[: len(value) // 2], value[len(value) // 2 :]


MAPS: list[Callable[[Any], Any]] = [
    *(double, add_in_place, kind, lambda value: value, lambda value: value.sum(dtype=np.float32)),
    *(lambda value: value.ravel(), lambda value: float(value.size), lambda _: 1 // 0),
    lambda value: value[..., None],
]
MAPS_ON_JAX: list[Callable[[Any], Any]] = [double, kind, jnp.ravel, jnp.cos, lambda _: 2]
COMBINATIONS: list[Callable[..., Any]] = [
    lambda *values: " ".join(map(kind, values)),
    lambda *values: np.concatenate([value.ravel() for value in values]),
    lambda *values: values[-1] + values[0],
]


@st.composite
def maps(draw: st.DrawFn, names: Sequence[str]) -> Rule:
    pattern, _ = draw(patterns(names))
    if draw(seldom()):
        return Map(pattern, lambda value, name: f"{name} {kind(value)}", with_name=True)
    if draw(st.booleans()):
        return Map(pattern, draw(st.sampled_from(MAPS_ON_JAX)), on="jax")
    return Map(pattern, draw(st.sampled_from(MAPS)))


@st.composite
def halves(draw: st.DrawFn, names: Sequence[str]) -> Rule:
    pattern, count = draw(patterns(names))
    to = draw(templates(names, count))
    return Split(pattern, (to, f"other/{to}"), half, **draw(options()))


@st.composite
def combinations(draw: st.DrawFn, names: Sequence[str]) -> Rule:
    pattern, count = draw(patterns(names))
    name, other = draw(st.sampled_from(names)), draw(st.sampled_from(names))
    above, _, last = name.rpartition("/")
    siblings = f"**/{last}", rf"\1/{other.rpartition('/')[2]}"
    given = [(pattern,), (pattern, other), siblings, (f"{above}/*", name)]
    inputs = draw(st.sampled_from(given))
    to = draw(templates(names, count if inputs[0] == pattern else 1))
    fn = draw(st.sampled_from(COMBINATIONS))
    on = "jax" if draw(seldom()) else "numpy"
    return Combine(inputs, to, fn, on=on, keep=draw(st.booleans()), **draw(options()))


@st.composite
def rules(draw: st.DrawFn, found: Mapping[str, Leaf], target: Sequence[str] | None) -> Rule:
    """Draw a rule that could fit some of these leaves."""
    names = list(found)
    known = [name for name, leaf in found.items() if leaf.is_known and np.ndim(leaf.value)]
    keys = [name for name, leaf in found.items() if is_key(leaf.value)]
    data = [name for name in known if found[name].value.dtype == np.uint32]
    numbered = [name for name in names if len(split_number(name)) > 1]
    given = [
        *(renames(names), renames(names), maps(names), maps(names)),
        *(casts(names), combinations(names), combinations(names)),
        *([splits(known), halves(known), unstacks(known), unstacks(known)] if known else []),
        *([transposes(known)] if known else []),
        *([stacks(numbered), stacks(numbered)] if numbered else []),
        *([patterns(keys).map(lambda drawn: KeyData(drawn[0]))] if keys else []),
        *([patterns(data).map(lambda drawn: WrapKeys(drawn[0]))] if data else []),
    ]
    if draw(seldom()):
        given = [patterns(names).map(lambda drawn: Drop(drawn[0]))]
    elif target is not None and draw(seldom()):
        fallback = patterns(target).map(lambda drawn: Fallback(drawn[0]))
        given = [fallback, assignments(names, target)]
    return draw(rarely.flatmap(lambda is_so: UNUSED if is_so else st.one_of(given)))


UNUSED = st.booleans().map(lambda allowed: Drop("no/such/leaf", allow_unused=allowed))


@st.composite
def rule_lists(draw: st.DrawFn, saved: Flat, target: Mapping[str, Any] | None) -> list[Rule]:
    """Draw rules most of which fit: what does not is mostly drawn again."""
    chosen: list[Rule] = []
    found = applied([], saved.named, target)
    for _ in range(draw(st.integers(1, 8))):
        rule = draw(rules(found, None if target is None else list(target)))
        is_final = draw(rarely)
        try:
            now = applied([*chosen, rule], saved.named, target)
        except Refused:
            now = {}
        if is_final:
            return [*chosen, rule]
        if now and not any(leaf.failure for leaf in now.values()):
            chosen.append(rule)
            found = now
    return chosen


@st.composite
def choices(draw: st.DrawFn, names: Sequence[str]) -> dict[str, Pattern]:
    """Draw which leaves to load."""
    drawn = {name: draw(patterns(names))[0] for name in ("only", "skip") if names}
    return {name: pattern for name, pattern in drawn.items() if draw(st.booleans())}


def is_chosen(only: Pattern = "**", skip: Pattern | None = None) -> Callable[[str], bool]:
    return lambda name: bool(find(only, [name])) and not (skip and find(skip, [name]))


def applied(
    given_rules: Sequence[Rule], saved: Mapping[str, Any], target: Mapping[str, Any] | None
) -> dict[str, Leaf]:
    """Return the leaves that rules leave, by the reference.

    Raises:
        Refused: They do not fit.
    """
    reference = Reference(saved, target)
    for rule in given_rules:
        reference.apply(rule)
    return reference.leaves


def is_above(name: str, names: Iterable[str]) -> bool:
    return any(other.startswith(f"{name}/" if name else "") for other in names if other != name)


@st.composite
def targets(draw: st.DrawFn, found: Mapping[str, Leaf]) -> Any:
    """Draw a target for leaves that rules make: one that fits, or nearly."""
    wanted: dict[str, Any] = {}
    for name, leaf in found.items():
        near = [near_target(leaf), near_target(leaf), PLACEHOLDER]
        if leaf.is_kept:
            near = [described(jnp.zeros(2)) if draw(rarely) else leaf.value]
        elif leaf.is_stored and isinstance(leaf.value, np.ndarray):
            more = (5,) if draw(rarely) else ()
            near += [np.zeros((*more, *leaf.value.shape), leaf.value.dtype)]
        wanted[name] = draw(st.sampled_from(near))
    if wanted and draw(rarely):
        del wanted[draw(st.sampled_from(sorted(wanted)))]
    if draw(rarely):
        wanted["more"] = 1
    assume(not any(is_above(name, wanted) for name in wanted))
    target = build_tree((tuple(map(DictKey, split_name(name))), v) for name, v in wanted.items())
    if isinstance(target, dict) and target and draw(rarely):
        target[draw(st.sampled_from(sorted(target)))] = PLACEHOLDER
    return target


def described(value: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=value.sharding)


def near_target(leaf: Leaf) -> Any:
    """Return a leaf of a target that asks for what a load without one gives."""
    if leaf.failure or (not leaf.is_stored and isinstance(leaf.value, np.generic | None)):
        return PLACEHOLDER
    value = leaf.result
    if isinstance(value, jax.Array):
        return described(value)
    return np.zeros_like(value) if isinstance(value, np.ndarray) else value
