"""The options of `load` and `plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    TypeAlias,
    TypedDict,
    Unpack,
    cast,
    get_args,
)

import jax
from numpy.typing import DTypeLike

from orbit_ckpt._src.arrays.sharding import as_sharding
from orbit_ckpt._src.checkpointer.wrong_arguments import (
    check_patterns,
    check_rules,
    check_tree,
)
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.metadata.values import TreeMetadata
from orbit_ckpt._src.progress import Progress
from orbit_ckpt._src.pytree.restore.patterns import casts_by_patterns
from orbit_ckpt._src.pytree.restore.target import Casting, Missing, RestoreOptions, Unexpected
from orbit_ckpt._src.runtime.checks import as_flag, check_callable, show
from orbit_ckpt._src.transform.engine import Rule
from orbit_ckpt._src.transform.patterns import Pattern, PatternMap, Patterns, compile_pattern

if TYPE_CHECKING:
    pass


AbstractTree: TypeAlias = (
    jax.ShapeDtypeStruct
    | bool
    | float
    | str
    | Mapping[str, "AbstractTree"]
    | tuple["AbstractTree", ...]
)
"""A target whose type says nothing of the type of what is loaded."""


class PlanOptions(TypedDict, total=False):
    """Options of `load` that affect the plan; see `load`."""

    only: Patterns
    skip: Patterns
    transforms: Sequence[Rule]
    missing: Missing
    unexpected: Unexpected
    fallback: object
    cast: Casting | PatternMap[object] | DTypeLike
    strict: bool
    sharding: jax.sharding.Sharding | jax.Device | PatternMap[jax.sharding.Sharding] | None
    reader: Format | None
    memory_limit: int | None


class LoadOptions(PlanOptions, total=False):
    """All options of `load` except the target and the report."""

    map_leaf: Callable[[Any, str], object] | None
    lazy: bool
    share_reads: bool
    progress: bool | Progress | None


def check_options(function: str, options: Mapping[str, object], known: type) -> None:
    """Check the names of keyword options; `known` is the class that declares them.

    Raises:
        TypeError: The function has no such option.
    """
    unknown = min(options.keys() - known.__annotations__.keys(), default=None)
    if unknown is not None:
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown!r}")


def restore_options(like: object, **options: Unpack[LoadOptions]) -> RestoreOptions:
    """Convert the options of `load` to restore options.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An option has an invalid value.
    """
    casts, sharding = options.pop("cast", "same_kind"), options.pop("sharding", None)
    check_tree("like", like, instead="a tree of arrays or jax.ShapeDtypeStruct like the result")
    fallback = options.get("fallback")
    check_tree("fallback", fallback, instead="a tree with the leaves that may be missing")
    check_patterns({name: options.get(name) for name in ("only", "skip")})
    check_rules(options.get("transforms", ()))
    if "strict" in options:
        options["strict"] = as_flag("strict", options["strict"])
    if "lazy" in options:
        options["lazy"] = as_flag("lazy", options["lazy"])
    if "share_reads" in options:
        options["share_reads"] = as_flag("share_reads", options["share_reads"])
    check_callable("map_leaf", options.get("map_leaf"), "Give one that takes a leaf and its name.")
    for name, values in _CHOICES.items():
        value: object = options.get(name, values[0])
        if value not in values:
            choices = ", ".join(map(repr, values))
            raise ValueError(f"{name} is {show(value)}; give one of {choices}.")
    policy = _POLICIES.get(casts) if isinstance(casts, str) else None
    return RestoreOptions(
        target=like.tree if isinstance(like, TreeMetadata) else like,
        match_leaf_types=True,
        cast_policy=policy or "same_kind",
        cast_rules={} if policy else casts_by_patterns(casts),
        sharding_rules=None if sharding is None else shardings_by_patterns(sharding),
        **cast(Any, options),  # the others are fields of the same names
    )


def shardings_by_patterns(sharding: object) -> PatternMap[jax.sharding.Sharding]:
    """Convert `sharding=` to patterns; a single sharding applies to all leaves.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(sharding, Mapping):
        return {"**": as_sharding(sharding, "sharding")}
    given = cast(Mapping[Pattern, object], sharding)
    for pattern in given:
        compile_pattern(pattern)
    return {
        pattern: as_sharding(value, f"sharding[{pattern!r}]") for pattern, value in given.items()
    }


_POLICIES: Mapping[str, Casting] = {policy: policy for policy in get_args(Casting)}

_CHOICES = {
    "missing": get_args(Missing),
    "unexpected": get_args(Unexpected),
}
