"""Import what a module names when it is first asked for, so that importing the module is cheap."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def import_later(module: dict[str, Any], where: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a module.

    Args:
        module: What the module has: its `globals()`.
        where: Names, and `MODULE` or `MODULE:NAME` that each stands for.
    """

    def get(name: str) -> object:
        if name not in where:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        source, _, attribute = where[name].partition(":")
        found = importlib.import_module(source)
        module[name] = getattr(found, attribute) if attribute else found
        return module[name]

    return get
