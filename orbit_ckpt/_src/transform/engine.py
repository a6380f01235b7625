"""Apply rules to the names of a checkpoint's leaves, without reading anything."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar, TypeVar

from msgspec import Struct, structs

from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.runtime.checks import check_flag_fields
from orbit_ckpt._src.transform.nodes import ArrayInfo, FromTarget, Node, Read
from orbit_ckpt._src.transform.patterns import (
    Pattern,
    check_is_no_regex,
    compile_pattern,
    explain_unmatched,
    is_exact,
    join_name,
    names_by_text,
)
from orbit_ckpt._src.tree.keypath import NamePath

T = TypeVar("T")

Match = tuple[str, re.Match[str]]
"""The name of a leaf, and how a pattern matches it."""


def _tag(name: str) -> str:
    """Return a rule's name in a rule file: `key_data` for `KeyData`."""
    return re.sub(r"(?<=.)(?=[A-Z])", "_", name).lower()


class Rule(Struct, frozen=True, repr_omit_defaults=True, tag_field="rule", tag=_tag):
    """One change to the leaves of a checkpoint as it is loaded.

    A subclass defines a whole rule: its fields are the user's arguments, and `apply` performs it.
    Rule files accept it too, unless it requires a function; see `rule_file`.
    """

    needs_shapes: ClassVar[bool] = True
    """Whether the result depends on more than the names of leaves."""

    def __post_init__(self) -> None:
        flags = [f.name for f in structs.fields(type(self)) if isinstance(f.default, bool)]
        check_flag_fields(self, *flags)

    def apply(self, leaves: Leaves) -> None:
        """Change the leaves; `leaves.error` makes the error for leaves that do not fit."""
        raise NotImplementedError(f"{type(self).__name__} is no rule: it has no method apply().")


class PatternRule(Rule, frozen=True):
    """A rule for the leaves that a pattern matches."""

    pattern: Pattern

    def __post_init__(self) -> None:
        super().__post_init__()
        compile_pattern(self.pattern)


def apply_rules(
    rules: Sequence[Rule],
    sources: Mapping[NamePath, ArrayInfo],
    target: Mapping[NamePath, object] | None = None,
    empty: Collection[NamePath] = (),
) -> dict[str, Node]:
    """Return how each leaf of the result is computed, by its name.

    Args:
        rules: The rules in their order.
        sources: Shape and dtype of every stored leaf, as far as known.
        target: The target's leaves, None without a target.
        empty: The leaves that are empty containers or None: rules move them, but never compute with
            them.
            from them.

    Raises:
        TransformError: A rule matches nothing, two leaves get one name, inputs are missing, or
            their shapes do not fit.
    """
    # Invariant: `nodes` maps each current name to the computation of its leaf, a graph whose inputs
    # are stored leaves, never names. A later rule thus builds on the graph that earlier rules made,
    # even if the names in between are gone. Nodes are immutable and may be shared; each stored leaf
    # is read once.
    leaves = Leaves(sources, target, empty)
    for rule in rules:
        leaves.rule = rule
        rule.apply(leaves)
    return leaves.nodes


class Leaves:
    """The leaves of a tree after the rules applied so far.

    Attributes:
        nodes: How each leaf is computed, by its name.
        target: The target's leaves, None without a target.
        rule: The rule being applied, for errors.
    """

    def __init__(
        self,
        sources: Mapping[NamePath, ArrayInfo],
        target: Mapping[NamePath, object] | None,
        empty: Collection[NamePath],
    ) -> None:
        self.nodes: dict[str, Node] = {
            name: Read(names, sources[names], is_empty=names in empty)
            for name, names in names_by_text(sources, "rules").items()
        }
        self.target = target
        self.rule: Rule | None = None

    @functools.cached_property
    def target_names(self) -> list[str]:
        """Names of the target's leaves."""
        return list(map(join_name, self.target or ()))

    def match(self, pattern: Pattern, allow_unused: bool) -> list[Match]:
        """Return the leaves that a pattern matches."""
        # look a single name up, so that one rule per leaf does not take quadratic time
        names = {str(pattern)} & self.nodes.keys() if is_exact(pattern) else self.nodes
        found = _match(pattern, names)
        if not found and not allow_unused:
            raise self._no_match(pattern, list(self.nodes))
        return found

    def match_values(self, pattern: Pattern, allow_unused: bool) -> list[Match]:
        """Return the leaves that a pattern matches, without empty containers."""
        found = self.match(pattern, allow_unused)
        values = [(name, match) for name, match in found if self.has_value(name)]
        if not values and not allow_unused:
            raise self.error("matches only empty containers")
        return values

    def match_target(self, pattern: Pattern, allow_unused: bool) -> list[Match]:
        """Return the target's leaves that a pattern matches."""
        found = _match(pattern, self.target_names)
        if not found and not allow_unused:
            raise self._no_match(pattern, self.target_names, " of the target")
        return found

    def has_value(self, name: str) -> bool:
        """Return whether a leaf exists and is not an empty container."""
        node = self.nodes.get(name)
        return node is not None and not (isinstance(node, Read) and node.is_empty)

    def get(self, name: str) -> Node:
        """Return a leaf of the checkpoint."""
        node = self.nodes[name]
        if isinstance(node, FromTarget):
            raise self.error(
                f"uses {name}, which an earlier rule takes from the target. Put that rule behind "
                "this one, or change the target itself"
            )
        return node

    def pop(self, name: str) -> Node:
        """Remove a leaf of the checkpoint and return it."""
        node = self.get(name)
        del self.nodes[name]
        return node

    def put(self, made: Sequence[tuple[str, Node]], *, overwrite: bool) -> None:
        """Add leaves; only with `overwrite` may they replace others."""
        seen: set[str] = set()
        for name, _ in made:
            if name in seen:
                raise self.error(f"gives two leaves the name {name}")
            if name in self.nodes and not overwrite:
                raise self.error(
                    f"gives a leaf the name {name}, which another has. Drop or rename that one "
                    "first, or set overwrite=True"
                )
            seen.add(name)
        self.nodes.update(made)

    def replace(
        self, pattern: Pattern, allow_unused: bool, make: Callable[[str, Node], Node]
    ) -> None:
        """Replace each leaf that a pattern matches by `make(name, node)`."""
        for name, _ in self.match_values(pattern, allow_unused):
            self.nodes[name] = self.infer(name, make, name, self.get(name))

    def infer(self, name: str, fn: Callable[..., T], *args: object) -> T:
        """Return what a function infers for a leaf; its ValueError becomes a TransformError."""
        try:
            return fn(*args)
        except ValueError as error:
            raise self.error(f"cannot be applied to {name}: {error}") from error

    def error(self, what: str) -> TransformError:
        """Return an error of the rule being applied."""
        return TransformError(f"{self.rule}: {what}.")

    def _no_match(self, pattern: Pattern, known: Sequence[str], whose: str = "") -> TransformError:
        return self.error(
            f"matches none of {len(known)} leaves{whose}. {explain_unmatched(pattern, known)} Set "
            "allow_unused=True if that is meant"
        )


def _match(pattern: Pattern, names: Iterable[str]) -> list[Match]:
    compiled = compile_pattern(pattern)
    found = [(name, match) for name in names if (match := compiled.fullmatch(name))]
    if not found:
        check_is_no_regex(pattern)
    return found
