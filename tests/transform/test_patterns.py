"""Patterns over names, and templates."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.transform.patterns import check_template, compile_pattern, expand

KEYS = st.text("abc01_.+(", min_size=1, max_size=4)
NAMES = st.lists(KEYS, min_size=1, max_size=5).map("/".join)


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("a/b", ["a/b"], ["a", "a/b/c", "x/a/b", "a.b"]),
        ("a/*", ["a/b", "a/"], ["a", "a/b/c"]),
        ("a/**", ["a/b", "a/b/c", "a/"], ["a", "ab/c", "x/a/b"]),
        ("**/b", ["b", "a/b", "x/a/b"], ["ab", "b/c"]),
        ("**", ["a", "a/b"], []),
        ("layers_*/w", ["layers_0/w", "layers_10/w"], ["layers_0/x/w", "layers/w"]),
        ("a/**/w", ["a/w", "a/b/w", "a/b/c/w"], ["aw", "a/bw"]),
        ("a.b/c+", ["a.b/c+"], ["axb/c+", "a.b/cc"]),
        (re.compile(r"a(\d+)"), ["a1"], ["a1b", "ba1"]),
    ],
)
def test_patterns_match_whole_names(
    pattern: str | re.Pattern[str], matches: list[str], others: list[str]
) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in [*matches, *others] if compiled.fullmatch(name)] == matches


@given(name=NAMES)
def test_a_name_matches_itself_and_what_is_all(name: str) -> None:
    assert compile_pattern(name).fullmatch(name)
    assert compile_pattern("**").fullmatch(name)
    match = compile_pattern("**").fullmatch(name)
    assert match is not None
    assert expand(r"x/\1", match) == f"x/{name}"


@pytest.mark.parametrize(
    ("pattern", "name", "template", "expected"),
    [
        ("layers_*/**", "layers_3/mlp/w", r"blocks/\1/\2", "blocks/3/mlp/w"),
        ("**/kernel", "kernel", r"\1/w", "w"),
        ("**/kernel", "a/b/kernel", r"\1/w", "a/b/w"),
        (re.compile(r"(?P<head>.*)/q"), "a/q", r"\g<head>/k", "a/k"),
        ("a", "a", r"b\\", r"b\\"),
    ],
)
def test_templates_take_what_was_matched(
    pattern: str | re.Pattern[str], name: str, template: str, expected: str
) -> None:
    match = compile_pattern(pattern).fullmatch(name)
    assert match is not None
    assert expand(template, match) == expected


@pytest.mark.parametrize(
    ("template", "pattern"),
    [(r"x/\1", "a/b"), (r"\3", "*/**"), (r"\g<i>", "a/*"), (r"\g<x>", re.compile("(?P<y>.*)"))],
)
def test_a_template_that_refers_to_nothing_is_refused(
    template: str, pattern: str | re.Pattern[str]
) -> None:
    with pytest.raises(ValueError, match="refers to"):
        check_template(template, pattern)


def test_a_pattern_is_a_string_or_an_expression() -> None:
    with pytest.raises(TypeError, match=r"re\.compile"):
        compile_pattern(3)  # pyright: ignore[reportArgumentType] - a mistake
