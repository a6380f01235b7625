"""The options of a tree's restore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import jax
from msgspec import Struct, field

from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.pytree.restore.transformed import LegacyFunction
from orbit_ckpt._src.transform.engine import Rule
from orbit_ckpt._src.transform.legacy import LegacyRules
from orbit_ckpt._src.transform.patterns import Pattern, PatternMap, Patterns

Casting = Literal["exact", "same_kind", "unsafe"]
"""The allowed casts: none; within a kind of number or to a more general one; all."""
Missing = Literal["error", "target", "keep", "skip"]
"""`keep` is `target` with a log entry, and ignores arguments for leaves that do not exist."""
Unexpected = Literal["error", "ignore"]


class RestoreOptions(Struct, frozen=True):
    """The options of a tree's restore.

    Attributes:
        target: Tree whose structure the result has; PLACEHOLDER leaves are not read. None for the
            recorded structure.
        restore_args: Tree of `RestoreArgs`, or of leaves that imply them, like the result.
        match_leaf_types: Whether the target's leaves determine type, shape, dtype and sharding;
            else only its structure counts.
        missing: How to fill leaves of the target that the checkpoint lacks.
        unexpected: How to treat leaves of the checkpoint that the target lacks.
        fallback: Tree with leaves for those that the checkpoint lacks.
        cast_policy: Which casts to the dtypes of such a target are allowed.
        cast_rules: Dtypes by patterns; leaves of another kind of number are not cast.
        sharding_rules: Shardings of JAX arrays by patterns; the first match counts, and one must
            match.
        map_leaf: Called with every restored leaf and its name; its result replaces the leaf.
        strict: Whether a typed target's shapes must be the stored ones.
        transforms: Rules that transform leaves during the restore.
        legacy: The same in Orbax's forms, which need a target; not with `transforms`.
        only: Patterns of the leaves to restore, None for all.
        skip: Patterns of leaves to leave out.
        lazy: Whether array leaves stay in storage, as `LazyArray`.
        reader: The format to read as, None to detect it.
    """

    target: object = None
    restore_args: object = None
    match_leaf_types: bool = False
    missing: Missing = "error"
    unexpected: Unexpected = "error"
    fallback: object = None
    cast_policy: Casting = "same_kind"
    cast_rules: PatternMap[object] = field(default_factory=dict[Pattern, object])
    sharding_rules: PatternMap[jax.sharding.Sharding] | None = None
    map_leaf: Callable[[object, str], object] | None = None
    strict: bool = True
    transforms: Sequence[Rule] = ()
    legacy: LegacyRules | LegacyFunction | None = None
    only: Patterns = None
    skip: Patterns = None
    lazy: bool = False
    reader: Format | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the result is the stored tree unchanged."""
        return (
            self.is_whole
            and not (self.lazy or self.cast_rules)
            and self.target is None
            and self.restore_args is None
            and self.sharding_rules is None
            and self.map_leaf is None
            and self.legacy is None
        )

    @property
    def is_whole(self) -> bool:
        """Whether the result has all leaves of the stored tree, under their names."""
        unset = (self.only, self.skip, self.fallback)
        return not self.transforms and all(option is None for option in unset)
