"""Rules that rename, combine, split and compute leaves while loading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.transform.engine import Rule
    from orbit_ckpt._src.transform.expected_mesh import ExpectedMesh
    from orbit_ckpt._src.transform.partition import partition
    from orbit_ckpt._src.transform.rule_file import parse_rules
    from orbit_ckpt._src.transform.rules import (
        AssignmentMap,
        Copy,
        Drop,
        Fallback,
        Rename,
        from_t5x,
    )
    from orbit_ckpt._src.transform.state import StateTransform
    from orbit_ckpt._src.transform.value_rules import (
        Cast,
        Combine,
        KeyData,
        Map,
        Split,
        Stack,
        Transpose,
        Unstack,
        WrapKeys,
    )

__all__ = [
    "AssignmentMap",
    "Cast",
    "Combine",
    "Copy",
    "Drop",
    "ExpectedMesh",
    "Fallback",
    "KeyData",
    "Map",
    "Rename",
    "Rule",
    "Split",
    "Stack",
    "StateTransform",
    "Transpose",
    "Unstack",
    "WrapKeys",
    "from_t5x",
    "parse_rules",
    "partition",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "transform.engine": "Rule",
        "transform.expected_mesh": "ExpectedMesh",
        "transform.partition": "partition",
        "transform.rule_file": "parse_rules",
        "transform.rules": "AssignmentMap, Copy, Drop, Fallback, from_t5x, Rename",
        "transform.state": "StateTransform",
        "transform.value_rules": (
            "Cast, Combine, KeyData, Map, Split, Stack, Transpose, Unstack, WrapKeys"
        ),
    },
)
