"""Rules that rename, merge, split and compute leaves on their way out of a checkpoint."""

from orbit_ckpt.transform.partition import partition
from orbit_ckpt.transform.rule_file import parse_rules
from orbit_ckpt.transform.rules import (
    AssignmentMap,
    Cast,
    Combine,
    Copy,
    Drop,
    Fallback,
    KeyData,
    Map,
    Rename,
    Rule,
    Split,
    Stack,
    StateTransform,
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
    "parse_rules",
    "partition",
]
