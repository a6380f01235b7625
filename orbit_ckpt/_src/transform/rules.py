"""Rules that rename leaves or choose their source.

Rules run in the order written, each on the result of the previous ones. Patterns match leaf names,
and templates make new ones; see `patterns`. All rules are applied to the names before anything is
read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing_extensions import override

from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.transform.engine import Leaves, PatternRule, Rule
from orbit_ckpt._src.transform.nodes import FromTarget, Node
from orbit_ckpt._src.transform.patterns import (
    Pattern,
    as_pairs,
    check_is_no_regex,
    check_template,
    compile_pattern,
    compile_regex,
    expand,
    pattern_text,
)

Assignments = Mapping[Pattern, str | None] | Sequence[tuple[Pattern, str | None]]
"""Patterns for names of the target, each with a template for the name in the checkpoint."""


class Rename(PatternRule, frozen=True):
    r"""Rename leaves.

    `Rename("params/layers_*/**", r"params/blocks/\1/\2")` moves every layer.

    Attributes:
        pattern: Which leaves.
        to: Template of their new names.
        overwrite: Replace a leaf that already has the new name; otherwise that is an error.
        allow_unused: Accept a pattern that matches no leaf.
    """

    to: str
    overwrite: bool = False
    allow_unused: bool = False

    needs_shapes = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_template(self.to, self.pattern)

    @override
    def apply(self, leaves: Leaves) -> None:
        found = leaves.match(self.pattern, self.allow_unused)
        made = [(expand(self.to, match), leaves.pop(name)) for name, match in found]
        leaves.put(made, overwrite=self.overwrite)


class Copy(PatternRule, frozen=True):
    """Copy leaves to further names.

    Attributes:
        pattern: Which leaves.
        to: Template of their further names.
        overwrite: As in `Rename`.
        allow_unused: As in `Rename`.
    """

    to: str
    overwrite: bool = False
    allow_unused: bool = False

    needs_shapes = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_template(self.to, self.pattern)

    @override
    def apply(self, leaves: Leaves) -> None:
        found = leaves.match(self.pattern, self.allow_unused)
        made = [(expand(self.to, match), leaves.get(name)) for name, match in found]
        leaves.put(made, overwrite=self.overwrite)


class Drop(PatternRule, frozen=True):
    """Omit leaves.

    Attributes:
        pattern: Which leaves.
        allow_unused: As in `Rename`.
    """

    allow_unused: bool = False

    needs_shapes = False

    @override
    def apply(self, leaves: Leaves) -> None:
        for name, _ in leaves.match(self.pattern, self.allow_unused):
            del leaves.nodes[name]


class Fallback(PatternRule, frozen=True):
    """Use the target's leaves, even if the checkpoint has them.

    Attributes:
        pattern: Which leaves of the target.
        allow_unused: As in `Rename`.
    """

    allow_unused: bool = False

    needs_shapes = False

    @override
    def apply(self, leaves: Leaves) -> None:
        if leaves.target is None:
            raise leaves.error("takes leaves from the target, but there is none; give like=")
        for name, _ in leaves.match_target(self.pattern, self.allow_unused):
            leaves.nodes[name] = FromTarget()


class AssignmentMap(Rule, frozen=True):
    """Choose the leaf of the checkpoint for each leaf of the target, as T5X does.

    All assignments are made at once, so names may be exchanged. Leaves of the checkpoint that are
    assigned do not keep their own names; the others do.

    Attributes:
        rules: Patterns for names of the target, each with a template for the name in the
            checkpoint, or None to use the target's leaf. The first match counts.
        require_all: Raise an error if a pattern matches nothing.
    """

    rules: Assignments
    require_all: bool = True

    needs_shapes = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern, template in self.pairs:
            if template is not None:
                check_template(template, pattern)

    @property
    def pairs(self) -> list[tuple[Pattern, str | None]]:
        """The rules in order."""
        advice = "Give {'new/**': r'old/\\1'}, for example."
        return as_pairs("AssignmentMap: rules", self.rules, advice)

    @override
    def apply(self, leaves: Leaves) -> None:
        if leaves.target is None:
            raise leaves.error(
                "assigns leaves to those of the target, but there is none; give like="
            )
        pairs = [(compile_pattern(pattern), template) for pattern, template in self.pairs]
        unused = set(range(len(pairs)))
        made: dict[str, Node] = {}
        assigned: set[str] = set()
        for name in leaves.target_names:
            matches = ((i, p.fullmatch(name), template) for i, (p, template) in enumerate(pairs))
            first = next(((i, match, template) for i, match, template in matches if match), None)
            if first is None:
                continue
            index, match, template = first
            unused.discard(index)
            if template is None:
                made[name] = FromTarget()
                continue
            source = expand(template, match)
            if source not in leaves.nodes:
                raise leaves.error(
                    f"Parameter '{source}' does not exist in restore checkpoint. Must be one of: "
                    f"{shorten_list(list(leaves.nodes))}"
                )
            made[name] = leaves.get(source)
            assigned.add(source)
        for index in unused:
            check_is_no_regex(self.pairs[index][0])
        if unused and self.require_all:
            patterns = [pattern_text(self.pairs[index][0]) for index in sorted(unused)]
            raise leaves.error(f"Unused patterns in `assignment_map`: {patterns}")
        for name in assigned:
            del leaves.nodes[name]
        leaves.nodes.update(made)


def from_t5x(
    assignment_map: Sequence[tuple[str, str | None]], *, require_all_rules_match: bool = True
) -> AssignmentMap:
    r"""Return the rule that T5X's `apply_assignment_map` applies.

    Args:
        assignment_map: As for T5X: regular expressions that match whole names of the target, each
            with the name in the checkpoint, which may refer to groups as `\1`, or None to take the
            leaf of the target or of `load(fallback=...)`.
        require_all_rules_match: Whether it is an error if an expression matches nothing.

    Raises:
        ValueError: A regular expression or a name is not valid.
        TypeError: It is not a map, or a pattern is not a string.

    Example:
        >>> from_t5x([(r"target/encoder/(.*)", r"target/decoder/\1"), (r"state/.*", None)]).rules[0]
        (re.compile('target/encoder/(.*)'), 'target/decoder/\\1')
    """
    example = r"Give [(r'target/(.*)', r'target/old/\1')], for example."
    pairs = as_pairs("assignment_map", assignment_map, example)
    rules = [(compile_regex(pattern), template) for pattern, template in pairs]
    return AssignmentMap(rules, require_all_rules_match)
