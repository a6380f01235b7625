"""Rules that rename, merge, split and compute leaves on their way out of a checkpoint."""

from typing import TYPE_CHECKING

from orbit_ckpt.later import import_later
from orbit_ckpt.transform.partition import partition
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

if TYPE_CHECKING:
    from orbit_ckpt.transform.rule_file import parse_rules

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

__getattr__ = import_later(globals(), {"parse_rules": "orbit_ckpt.transform.rule_file:parse_rules"})


def __dir__() -> list[str]:
    return __all__
