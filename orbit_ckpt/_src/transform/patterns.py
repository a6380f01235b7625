r"""Patterns for leaf names, and templates for new names.

A leaf's name here is its keys joined by slashes, such as `params/layers_0/kernel`. A pattern is a
string in which `*` matches anything within one key and `**` any number of keys, or a compiled
regular expression that must match the whole name. A template refers to the text that wildcards or
groups match as `\1`, `\2` or `\g<name>`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.guards import is_list_or_tuple, is_mapping, is_sequence
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.diff import nearest_names
from orbit_ckpt._src.tree.keypath import NamePath

Pattern = str | re.Pattern[str]

Patterns = Pattern | Sequence[Pattern] | None
"""One pattern, several of which one has to match, or none."""

T = TypeVar("T")

PatternMap = Mapping[str, T] | Mapping[re.Pattern[str], T] | Mapping[Pattern, T]
"""Something for leaves that patterns match; of several patterns the first one counts."""


_REFERENCE = re.compile(r"\\(?:(\d+)|g<(\w+)>)(/?)")
_WILDCARDS = {
    "/**/": "/(?:(.*)/)?",
    "**/": "(?:(.*)/)?",
    "/**": "/(.*)",
    "**": "(.*)",
    "*": "([^/]*)",
}
_WILDCARD = re.compile("|".join(map(re.escape, _WILDCARDS)))
_REGEX_SIGN = re.compile(
    r"""\\ | \(\? | \([^)]*[*+|][^)]*\) | \[[^]]*-[^]]*\] | \.\+ | (?:^|/)\.\* | ^\^ | \$$""",
    re.VERBOSE,
)
"""Features of strings meant as regular expressions, which names rarely have."""


def join_name(names: NamePath) -> str:
    """Return the name of a leaf."""
    return "/".join(names)


def split_name(name: str) -> NamePath:
    """Split a new name into keys."""
    return tuple(name.split("/")) if name else ()


def names_by_text(leaves: Iterable[NamePath], what: str) -> dict[str, NamePath]:
    """Return the keys of leaves by name.

    Args:
        leaves: Their keys.
        what: The feature that needs the names, for the error.

    Raises:
        TransformError: Two leaves have one name, because a key contains a slash.
    """
    found: dict[str, NamePath] = {}
    for names in leaves:
        name = join_name(names)
        if found.setdefault(name, names) is not names:
            raise TransformError(
                f"{name}: two leaves have this name, because a key has a slash in it; {what} "
                f"cannot tell them apart. Restore without {what} and rename the key."
            )
    return found


def compile_pattern(pattern: Pattern) -> re.Pattern[str]:
    """Compile a pattern to a regular expression.

    Raises:
        TypeError: It is neither a string nor a compiled expression.
    """
    if isinstance(pattern, re.Pattern):
        return pattern
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
        raise TypeError(f"A pattern is {pattern!r}; give a string or re.compile(...).")
    return _compile(pattern)


def compile_regex(pattern: Pattern) -> re.Pattern[str]:
    """Compile a regular expression.

    Raises:
        TypeError: It is not a string.
        ValueError: It is not valid.
    """
    if not isinstance(pattern, str):
        return compile_pattern(pattern)
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is not a valid regular expression: {error}. Correct it, or give patterns "
            "of '*' and '**' to the functions that take those."
        ) from error


@functools.lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    parts: list[str] = []
    end = 0
    for found in _WILDCARD.finditer(pattern):
        parts.append(re.escape(pattern[end : found.start()]))
        parts.append(_WILDCARDS[found.group()])
        end = found.end()
    return re.compile("".join([*parts, re.escape(pattern[end:])]), re.DOTALL)


def check_is_no_regex(pattern: Pattern) -> None:
    """Check that a pattern that matches nothing is not a regular expression in a string.

    Raises:
        TransformError: It looks like one.
    """
    advice = regex_advice(pattern)
    if advice:
        raise TransformError(f"{pattern_text(pattern)!r} matches no leaf.{advice}")


def regex_advice(pattern: Pattern) -> str:
    """Return the advice for a string that looks like a regular expression, else ""."""
    if not isinstance(pattern, str) or _REGEX_SIGN.search(pattern) is None:
        return ""
    return (
        f" It looks like a regular expression; in a string only '*' and '**' are special. Give "
        f"re.compile({pattern!r}), which must match whole names; for an assignment map of T5X "
        "orbit_ckpt.transform.from_t5x(assignment_map); for partition rules that are searched for, "
        "as in eFormer, orbit_ckpt.transform.partition(mesh, rules, match='search')."
    )


def names_matching(pattern: Pattern, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches.

    A name without wildcards that matches nothing may have its keys joined by dots, as in storage.

    Raises:
        TypeError: The pattern is neither a string nor a compiled expression.
        TransformError: It matches nothing and looks like a regular expression in a string.
    """
    compiled = compile_pattern(pattern)
    known = list(names)
    found = [name for name in known if compiled.fullmatch(name)]
    if not found and isinstance(pattern, str) and is_exact(pattern) and "." in pattern:
        found = [name for name in known if name.replace("/", ".") == pattern]
    if known and not found:
        check_is_no_regex(pattern)
    return found


def leaves_matching(what: str, patterns: Patterns, known: Iterable[NamePath]) -> set[NamePath]:
    """Return the leaves that at least one of several patterns matches.

    Args:
        what: The argument that has the patterns, for the error.
        patterns: The patterns.
        known: The leaves.

    Raises:
        TransformError: A pattern matches nothing.
    """
    matched: set[NamePath] = set()
    by_name: dict[str, list[NamePath]] = {}
    for names in known:
        by_name.setdefault(join_name(names), []).append(names)
    several = [patterns] if isinstance(patterns, str | re.Pattern) else patterns or ()
    for pattern in several:
        found = names_matching(pattern, by_name)
        if not found:
            raise TransformError(
                f"{what}: {pattern!r} matches no leaf of {len(by_name)}. "
                f"{explain_unmatched(pattern, list(by_name))}"
            )
        matched.update(names for name in found for names in by_name[name])
    return matched


def explain_unmatched(pattern: Pattern, names: Sequence[str]) -> str:
    """Explain why a pattern matches no leaf: what exists, and what may be meant.

    Args:
        pattern: The pattern.
        names: The leaves that it could have matched.
    """
    text = pattern if isinstance(pattern, str) else pattern.pattern
    plain = text.rstrip("/").replace(".", "/") if is_exact(pattern) else text.strip("*/")
    below = next((p for p in (text.rstrip("/"), plain) if _has_below(p, names)), None)
    if is_exact(pattern) and below is not None:
        return f"Leaves exist below it: {below}/** matches them."
    depth = len(split_name(plain))
    parents = dict.fromkeys("/".join(name.split("/")[:depth]) for name in names)
    if is_exact(pattern):
        near = nearest_names(plain, names)
    else:
        near = [f"{name}/**" for name in nearest_names(plain, list(parents))]
    if near:
        return f"The nearest names are {', '.join(near)}."
    return (
        f"There are {shorten_list(names, 8)}. '*' stands for one key, '**' for any number of keys."
    )


def _has_below(name: str, names: Sequence[str]) -> bool:
    return any(other.startswith(f"{name}/") for other in names)


def is_exact(pattern: Pattern) -> bool:
    """Return whether a pattern is one name."""
    return isinstance(pattern, str) and "*" not in pattern


def check_template(template: str, pattern: Pattern, *, more: Sequence[str] = ()) -> None:
    """Check that a template refers only to wildcards and groups of a pattern.

    Args:
        template: The template.
        pattern: The pattern.
        more: Further names that the template may refer to.

    Raises:
        TypeError: It is not a string.
        ValueError: It refers to something else, or is not a template.
    """
    if not isinstance(template, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
        raise TypeError(
            f"A new name (to) must be a str, found {show(template)}. Give 'layer/kernel', for "
            "example."
        )
    if "*" in template:
        raise ValueError(
            f"{template!r} is a pattern; a new name refers to what "
            rf"{pattern_text(pattern)!r} matches: \1 is its first wildcard or group."
        )
    if any(character < " " for character in template):
        raise ValueError(rf"{template!r} has control characters; write r'\1', a raw string.")
    compiled = compile_pattern(pattern)
    for reference in _REFERENCE.finditer(template):
        number, name, _ = reference.groups()
        number = number or (name if name.isdigit() else None)
        known = int(number) <= compiled.groups if number else name in (*compiled.groupindex, *more)
        if not known:
            raise ValueError(
                f"{template!r} refers to {reference.group().rstrip('/')}, but "
                f"{pattern_text(pattern)!r} has {compiled.groups} wildcards or groups."
                f"{regex_advice(pattern)}"
            )


def expand(template: str, match: re.Match[str]) -> str:
    """Fill a template from a match; a wildcard that matches no keys leaves no slash."""
    parts: list[str] = []
    for text, group, slash in _parse(template):
        parts.append(text)
        if group is not None and (found := match[group]):
            parts += (found, slash)
    return "".join(parts)


@functools.lru_cache(maxsize=1024)
def _parse(template: str) -> list[tuple[str, int | str | None, str]]:
    """Return the texts of a template, each with the group after it and the slash after that."""
    parts: list[tuple[str, int | str | None, str]] = []
    end = 0
    for reference in _REFERENCE.finditer(template):
        number, name, slash = reference.groups()
        group = number or name
        group = int(group) if group.isdigit() else group
        parts.append((template[end : reference.start()], group, slash))
        end = reference.end()
    return [*parts, (template[end:], None, "")]


def as_pairs(name: str, rules: object, advice: str) -> list[tuple[Pattern, Any]]:
    """Return patterns and their values, given as a dict or as pairs.

    Raises:
        TypeError: They are neither.
    """
    pairs: object = list(rules.items()) if is_mapping(rules) else rules
    if is_sequence(pairs) and all(is_list_or_tuple(p) and len(p) == _PAIR for p in pairs):
        found: Any = pairs
        return [(pattern, value) for pattern, value in found]
    raise TypeError(f"{name} must be a dict or a list of pairs, found {show(rules)}. {advice}")


_PAIR = 2


def pattern_text(pattern: Pattern) -> str:
    """Return a pattern as the user wrote it."""
    return pattern if isinstance(pattern, str) else pattern.pattern
