"""The command that lists installed formats and plug-ins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

import click

from orbit_ckpt._src.cli.output import echo, print_json
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.errors import PluginConflictError
from orbit_ckpt._src.formats.base import BUILT_IN
from orbit_ckpt._src.plugins import Plugin, PluginRegistry, choose, installed_plugins

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.base import Format
    from orbit_ckpt._src.type_handlers.base import TypeHandler

_GROUPS = {
    "orbit_ckpt.type_handlers": "type_handlers.registry",
    "orbit_ckpt.items": "items.registry",
    "orbit_ckpt.formats": "formats.base",
    "orbit_ckpt.stores": "storage.bucket",
    "orbit_ckpt.policies": "manager.plugin_policies",
    "orbit_ckpt.cli": "cli.plugin_commands",
}
"""The modules that have the registries of plug-ins; one is imported if its group has any."""


def plugins(as_json: bool) -> None:
    """List the formats of other programs, and plug-ins; exit with 1 if one is unusable."""
    built_in: list[dict[str, object]] = [
        {"name": known.title, "extra": None} for known in BUILT_IN.values()
    ]
    found: list[dict[str, object]] = []
    installed = list(_installed())
    conflicts = _conflicts(installed)
    for plugin in installed:
        entry, package = plugin.entry, plugin.entry.dist
        error = plugin.error or conflicts.get(plugin.title)
        found.append(
            {
                "group": entry.group,
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
        raise click.exceptions.Exit(1)


def _installed() -> Iterator[Plugin[object]]:
    groups = installed_plugins().groups
    for group, module in _GROUPS.items():
        if group in groups:
            registry: PluginRegistry[object] = import_module(f"orbit_ckpt._src.{module}").PLUGINS
            yield from registry.all()


def _conflicts(installed: Sequence[Plugin[object]]) -> dict[str, PluginConflictError]:
    """Return by title the errors of plug-ins that claim the same, none of which is preferred."""
    claims: dict[tuple[str, str], list[Plugin[object]]] = {}
    for plugin in installed:
        for claim in _claims(plugin) if plugin.error is None else ():
            claims.setdefault((plugin.entry.group, claim), []).append(plugin)
    errors: dict[str, PluginConflictError] = {}
    for (_, claim), plugins in claims.items():
        try:
            choose(plugins, claim)
        except PluginConflictError as error:
            errors |= dict.fromkeys((plugin.title for plugin in plugins), error)
    return errors


def _claims(plugin: Plugin[object]) -> list[str]:
    """Return what a plug-in alone can provide, for messages."""
    if plugin.entry.group == "orbit_ckpt.type_handlers":
        types, handler = cast("tuple[tuple[type, ...], TypeHandler]", plugin.loaded)
        names = [f"the type {ty.__module__}.{ty.__qualname__}" for ty in types]
        return [*names, f"the typestr {handler.typestr()!r}"]
    if plugin.entry.group == "orbit_ckpt.formats":
        return [f"the format {cast('Format', plugin.loaded).name!r}"]
    return [f"the name {plugin.entry.name!r}"]


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
