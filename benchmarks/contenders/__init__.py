"""Contenders: one class per way to store a tree.

A contender is constructed with the tree and the `Settings`, and has a method for every supported
operation, see `benchmarks.operations`; the others are skipped. All methods take the path of the
checkpoint first. The constructor raises `UnsupportedTree` if it cannot represent the tree.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings shared by all contenders.

    Attributes:
        compression: Whether to compress; ignored by contenders that never do.
        memory_limit_gb: Maximum GB to hold at once; ignored by contenders without such a limit.
    """

    compression: bool = True
    memory_limit_gb: float | None = None


class UnsupportedTree(Exception):  # noqa: N818 - an answer, not a mistake
    """A contender cannot represent a tree; the message says why."""


class Contender(Protocol):
    """Stores one tree; the methods of other operations are optional."""

    def save(self, path: Path) -> None:
        """Save the tree."""
        ...


BUILT_IN = {
    "orbit_ckpt": ("benchmarks.contenders.orbit:OrbitCkpt", "orbit_ckpt"),
    "orbax": ("benchmarks.contenders.orbax:Orbax", "orbax.checkpoint"),
    "safetensors": ("benchmarks.contenders.safetensors_file:Safetensors", "safetensors"),
    "torch": ("benchmarks.contenders.torch_dcp:TorchDcp", "torch"),
    "bare": ("benchmarks.contenders.bare:Bare", "numpy"),
}
"""Contenders by name: the class, and its required package."""


def find_contender(name: str) -> Callable[[object, Settings], Contender]:
    """Return the class of a contender, given by name or as `module:class`."""
    location = BUILT_IN[name][0] if name in BUILT_IN else name
    module, _, attribute = location.partition(":")
    return getattr(importlib.import_module(module), attribute)


def missing_package(name: str) -> str | None:
    """Return a required package of a contender that is not installed, or None."""
    if name not in BUILT_IN:
        return None
    package = BUILT_IN[name][1]
    root = package.partition(".")[0]  # looking for `a.b` imports `a`
    found = importlib.util.find_spec(root) and importlib.util.find_spec(package)
    return None if found else package
