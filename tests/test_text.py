"""Lists in messages."""

from __future__ import annotations

from orbit_ckpt._src.text import shorten_lines, shorten_list


def test_a_long_list_ends_in_how_many_more_there_are() -> None:
    assert shorten_list(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert shorten_lines(["a", "b", "c"], 1) == ["a", "... and 2 more"]


def test_a_list_within_the_limit_is_whole() -> None:
    assert shorten_list([3, 1], 2, separator="; ") == "3; 1"
    assert shorten_lines(["a", "b"], 2) == ["a", "b"]
