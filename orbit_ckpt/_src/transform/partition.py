"""Shardings by patterns over the names of leaves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.transform.patterns import (
    Pattern,
    PatternMap,
    as_pairs,
    compile_pattern,
    compile_regex,
)

Match = Literal["name", "search"]


def partition(
    mesh: Mesh,
    rules: PatternMap[PartitionSpec] | Sequence[tuple[Pattern, PartitionSpec]],
    *,
    match: Match = "name",
) -> dict[Pattern, NamedSharding]:
    """Return shardings over a mesh, for `load(sharding=...)`.

    Args:
        mesh: The devices.
        rules: Patterns for names, with the layout of arrays over the mesh's axes. The first that
            matches a leaf counts. Large arrays for which only a final rule for all names remains,
            and which it replicates, are logged by `load`.
        match: `"name"`, patterns match whole names and strings are patterns of `*` and `**`; or
            `"search"`, strings are regular expressions and match names in which `re.search` finds
            them, as eFormer's partition rules do: `mlp/kernel` then also matches the optimizer's
            `opt_state/mlp/kernel/m`.

    Raises:
        TypeError: The mesh, a pattern or a spec has the wrong type.
        ValueError: A spec names an axis that the mesh lacks, or a regular expression is not valid.

    Example:
        >>> devices = np.array(jax.devices()[:1]).reshape(1, 1)
        >>> mesh = jax.sharding.Mesh(devices, ("data", "model"))
        >>> shardings = partition(mesh, {"**/kernel": PartitionSpec(None, "model")})
        >>> shardings["**/kernel"].spec[1]
        'model'
        >>> rules = [("mlp/kernel", PartitionSpec("data")), (".*", PartitionSpec())]
        >>> shardings = partition(mesh, rules, match="search")  # for eFormer's rules
    """
    if not isinstance(mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
        raise TypeError(f"mesh must be a jax.sharding.Mesh, found {show(mesh)}. Give it first.")
    if match not in get_args(Match):
        choices = ", ".join(map(repr, get_args(Match)))
        raise ValueError(f"match is {show(match)}; give one of {choices}.")
    pairs = as_pairs("rules", rules, "Give {'**/kernel': PartitionSpec(None, 'x')}, for example.")
    found: dict[Pattern, NamedSharding] = {}
    for pattern, spec in pairs:
        key = _searched(pattern) if match == "search" else pattern
        compile_pattern(key)
        if not isinstance(spec, PartitionSpec):
            raise TypeError(
                f"rules[{pattern!r}] must be a jax.sharding.PartitionSpec, found {show(spec)}. "
                "Give PartitionSpec('x'), for example."
            )
        found.setdefault(key, NamedSharding(mesh, spec))
    return found


def _searched(pattern: Pattern) -> re.Pattern[str]:
    """Return an expression that matches every whole name in which the given one is found.

    Raises:
        ValueError: It is not valid.
    """
    plain = compile_regex(pattern)
    text = _FLAGS.sub("", plain.pattern)  # they may only be at the start; plain.flags has them
    return re.compile(f"(?s:.*?)(?:{text})(?s:.*)", plain.flags)


_FLAGS = re.compile(r"\A\(\?[aiLmsux]+\)")
