"""Lazy imports: a public module imports what it exports when a name is first used.

Opening a public module thus costs nothing, and a command that needs no JAX imports none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_getattr(module: dict[str, Any], sources: Mapping[str, str]) -> Callable[[str], object]:
    """Return a module's `__getattr__`, which imports each name when it is first used.

    Args:
        module: The module's `globals()`.
        sources: `MODULE` or `MODULE:NAME` for each name.
    """

    def get(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        source, _, attribute = sources[name].partition(":")
        imported = importlib.import_module(source)
        module[name] = getattr(imported, attribute) if attribute else imported
        return module[name]

    return get


def lazy_names(
    module: dict[str, Any], names: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a public module.

    Args:
        module: The module's `globals()`, with `__all__`.
        names: For each module of the implementation, what an import statement would name:
            `"A, B as C"`. Under the key `""` are public modules.
    """
    sources: dict[str, str] = {}
    for source, imported in names.items():
        for item in imported.split(", "):
            name, _, alias = item.partition(" as ")
            at = f"orbit_ckpt._src.{source}:{name}" if source else f"orbit_ckpt.{name}"
            sources[alias or name] = at
    return lazy_getattr(module, sources), lambda: sorted(module["__all__"])
