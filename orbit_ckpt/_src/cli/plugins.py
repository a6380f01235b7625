"""What is installed: formats of other programs, and plug-ins."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import typer

from orbit_ckpt._src.cli.output import echo, print_json, print_table
from orbit_ckpt._src.formats.locate import BUILT_IN
from orbit_ckpt._src.plugins import FORMATS, ITEMS, TYPE_HANDLERS, find_plugins

_GROUPS: Mapping[str, str] = {
    TYPE_HANDLERS: "orbit_ckpt._src.type_handlers.registry:prepare_type_handler",
    ITEMS: "orbit_ckpt._src.items.registry:prepare_item_handler",
    FORMATS: "orbit_ckpt._src.formats.detect:prepare_format",
}
"""What checks the plug-ins of each group; imported if there is one."""


def plugins(as_json: bool) -> None:
    """List the formats of other programs, and plug-ins; exits with 1 if one cannot be used."""
    built_in: list[dict[str, object]] = [
        {"name": name, "extra": None} for name in BUILT_IN.values()
    ]
    found: list[dict[str, object]] = []
    for group, where in _GROUPS.items():
        for plugin in find_plugins(group, _later(where)):
            entry, package, error = plugin.entry, plugin.entry.dist, plugin.error
            found.append(
                {
                    "group": group,
                    "name": entry.name,
                    "package": f"{package.name} {package.version}" if package else None,
                    "object": entry.value,
                    "error": None if error is None else f"{type(error).__name__}: {error}",
                }
            )
    failed = any(plugin["error"] is not None for plugin in found)
    if as_json:
        print_json("plugins", formats=built_in, plugins=found)
    else:
        needs = [[str(one["name"]), str(one["extra"] or "nothing")] for one in built_in]
        print_table(["format", "needs"], needs)
        echo()
        _print_plugins(found)
    if failed:
        raise typer.Exit(1)


def _later(where: str) -> Callable[[object], object]:
    """Return a function that is imported when it is called."""
    module, _, name = where.partition(":")

    def prepare(plugin: object) -> object:
        found = getattr(importlib.import_module(module), name)
        return cast(Callable[[object], object], found)(plugin)

    return prepare


def _print_plugins(found: Sequence[dict[str, object]]) -> None:
    if not found:
        echo("no plug-ins are installed")
        return
    rows = [
        [
            str(plugin["group"]).removeprefix("orbit_ckpt."),
            str(plugin["name"]),
            str(plugin["package"] or ""),
            str(plugin["object"]),
            "ok" if plugin["error"] is None else str(plugin["error"]),
        ]
        for plugin in found
    ]
    print_table(["kind", "name", "package", "object", "state"], rows)
