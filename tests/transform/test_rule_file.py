"""Rules from documents do what the same rules do from Python; mistakes are named."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt import transform
from orbit_ckpt._src.transform.engine import Leaves, PatternRule
from orbit_ckpt.errors import TransformError

DOCUMENT = r"""
rules = [
  { rule = "rename", pattern = "a/*", to = 'b/\1', overwrite = true, allow_unused = true },
  { rule = "copy", pattern = "b/x", to = "c/x" },
  { rule = "drop", pattern = { regex = "c/.*" } },
  { rule = "fallback", pattern = "new/**", allow_unused = true },
  { rule = "split", pattern = "**/qkv", to = ['\1/q', '\1/k'], axis = 0 },
  { rule = "stack", pattern = "layers_*/**", to = 'layers/\2', axis = 1, first = 2 },
  { rule = "unstack", pattern = "s/*", to = 's_\g<i>/\1' },
  { rule = "transpose", pattern = "t", axes = [1, 0] },
  { rule = "cast", pattern = "**", dtype = "bfloat16" },
  { rule = "key_data", pattern = "k" },
  { rule = "wrap_keys", pattern = "k", impl = "rbg" },
  { rule = "assignment_map", rules = [{ pattern = "x/(.*)", to = "y" }, { pattern = "z" }] },
]
"""

RULES = [
    transform.Rename("a/*", r"b/\1", overwrite=True, allow_unused=True),
    transform.Copy("b/x", "c/x"),
    transform.Drop(re.compile("c/.*")),
    transform.Fallback("new/**", allow_unused=True),
    transform.Split("**/qkv", (r"\1/q", r"\1/k"), axis=0),
    transform.Stack("layers_*/**", r"layers/\2", axis=1, first=2),
    transform.Unstack("s/*", r"s_\g<i>/\1"),
    transform.Transpose("t", axes=[1, 0]),
    transform.Cast("**", "bfloat16"),
    transform.KeyData("k"),
    transform.WrapKeys("k", impl="rbg"),
    transform.AssignmentMap([("x/(.*)", "y"), ("z", None)]),
]


def test_a_document_says_what_python_says() -> None:
    assert transform.parse_rules(tomllib.loads(DOCUMENT)) == RULES


def test_combine_takes_a_function_by_its_name(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"q": np.zeros((2, 3)), "k": np.ones((2, 3))})
    for fn, axis, shape in (
        ("concatenate", None, (2, 6)),
        ("concatenate", 0, (4, 3)),
        ("stack", None, (2, 2, 3)),
        ("stack", 2, (2, 3, 2)),
    ):
        rule: dict[str, Any] = {"rule": "combine", "inputs": ["q", "k"], "to": "qk", "fn": fn}
        rules = transform.parse_rules({"rules": [rule | ({} if axis is None else {"axis": axis})]})
        assert ocp.load(tmp_path / "c", transforms=rules)["qk"].shape == shape


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "found nothing, expected a table with `rules`"),
        ([], "found a list, expected a table"),
        ({}, "found nothing as `rules`, expected a table with `rules`"),
        ({"rule": []}, "found the fields rule, expected a table with `rules`"),
        ({"rules": {}}, "found a dict as `rules`, expected a table with `rules`, a list"),
        ({"rules": ["drop"]}, "rule 1: found a str, expected a table"),
        ({"rules": [{"pattern": "a"}]}, "rule 1: `rule` is None. There are assignment_map, cast"),
        ({"rules": [{"rule": "renam"}]}, "`rule` is 'renam'; did you mean 'rename'"),
        ({"rules": [{"rule": "map", "pattern": "a"}]}, "`rule` is 'map'"),
        ({"rules": [{"rule": "drop"}]}, r"rule 1 \(drop\): 'pattern' must be given"),
        ({"rules": [{"rule": "rename"}]}, "'pattern' and 'to' must be given"),
        ({"rules": [{"rule": "drop", "patern": "a"}]}, "no field 'patern'; did you mean 'pattern'"),
        ({"rules": [{"rule": "drop", "pattern": 3}]}, "`pattern`: found 3, expected a text or"),
        (
            {"rules": [{"rule": "drop", "pattern": {"regex": "("}}]},
            "found .*, expected a text or a regular expression.*: missing",
        ),
        (
            {"rules": [{"rule": "drop", "pattern": "a", "allow_unused": 1}]},
            "`allow_unused`: found 1, expected true or false",
        ),
        (
            {"rules": [{"rule": "stack", "pattern": "*", "to": "a", "axis": True}]},
            "`axis`: found True, expected a whole number",
        ),
        ({"rules": [{"rule": "rename", "pattern": "a", "to": ["b"]}]}, "expected a text"),
        ({"rules": [{"rule": "split", "pattern": "a", "to": "b"}]}, "`to`: .* expected a list"),
        ({"rules": [{"rule": "split", "pattern": "a", "to": ["b"], "fn": "x"}]}, "no field 'fn'"),
        ({"rules": [{"rule": "rename", "pattern": "a", "to": r"b/\1"}]}, "has 0 wildcards"),
        ({"rules": [{"rule": "cast", "pattern": "a", "dtype": "float99"}]}, r"rule 1 \(cast\)"),
        (
            {"rules": [{"rule": "combine", "inputs": ["a"], "to": "b", "fn": "sum"}]},
            '`fn`: found \'sum\', expected "concatenate" or "stack"',
        ),
        ({"rules": [{"rule": "combine", "inputs": ["a"], "to": "b"}]}, "'fn' must be given"),
        (
            {"rules": [{"rule": "assignment_map", "rules": [{"to": "a"}]}]},
            "`rules`: .* missing required field `pattern`",
        ),
        (
            {"rules": [{"rule": "assignment_map", "rules": ["a"]}]},
            "`rules`: .* expected a list of tables with pattern",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_rule_is_named(document: object, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        transform.parse_rules(document)


class Mirror(PatternRule, frozen=True):
    """A rule that is defined elsewhere."""

    factor: float = 1.0

    @override
    def apply(self, leaves: Leaves) -> None:
        raise NotImplementedError


def test_every_class_of_rules_can_be_written() -> None:
    document = {"rules": [{"rule": "mirror", "pattern": "a", "factor": 0.5}]}
    assert transform.parse_rules(document) == [Mirror("a", 0.5)]
    document["rules"][0]["factor"] = "b"
    with pytest.raises(TransformError, match=r"`factor`: found 'b', .*Expected `float`"):
        transform.parse_rules(document)
