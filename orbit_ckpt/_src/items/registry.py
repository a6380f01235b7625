"""Choose the handler of an item.

A save chooses it by the arguments or the item's name, a restore by the step's record, or in older
checkpoints by the item's files.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast, runtime_checkable

from typing_extensions import override

from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.formats.orbax.layout import holds_tree
from orbit_ckpt._src.items.arguments import (
    ARGUMENTS,
    get_registered_args_cls,
    handler_class_of,
    registered_args,
    takes_args,
)
from orbit_ckpt._src.items.base import ORBAX_PREFIX, CheckpointHandler
from orbit_ckpt._src.items.json import JsonHandler
from orbit_ckpt._src.items.pytree import PyTreeHandler
from orbit_ckpt._src.plugins import PluginRegistry
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, MANIFEST
from orbit_ckpt._src.storage.path import describe_directory

Key = tuple[str | None, type]

JAX_RANDOM_KEY = f"{ORBAX_PREFIX}random_key_checkpoint_handler.JaxRandomKeyCheckpointHandler"
NUMPY_RANDOM_KEY = f"{ORBAX_PREFIX}random_key_checkpoint_handler.NumpyRandomKeyCheckpointHandler"

_LATER = {
    f"{ORBAX_PREFIX}array_checkpoint_handler.ArrayCheckpointHandler": "array",
    f"{ORBAX_PREFIX}base_pytree_checkpoint_handler.BasePyTreeCheckpointHandler": "base_pytree",
    f"{ORBAX_PREFIX}proto_checkpoint_handler.ProtoCheckpointHandler": "proto",
    JAX_RANDOM_KEY: "random_key",
    NUMPY_RANDOM_KEY: "random_key",
    "orbit_ckpt.items.stateful.StatefulHandler": "stateful",
}
"""Modules of the handlers that are imported when something is theirs, by typestr."""


_RANDOM_KEYS = {"jax_random_key": JAX_RANDOM_KEY, "np_random_key": NUMPY_RANDOM_KEY}
_ORBAX = "orbax."
_V1_CLASSES: Mapping[str, type[CheckpointHandler]] = {
    "json_handler.JsonHandler": JsonHandler,
    "json_handler.MetricsHandler": JsonHandler,
    "pytree_handler.PyTreeHandler": PyTreeHandler,
}
"""Handlers that read what those of Orbax's v1 API wrote, by the ends of their typestrs."""


class AlreadyExistsError(ValueError):
    """A registry already has a handler for this item and these arguments."""


class NoEntryError(KeyError):
    """A registry has no handler for this item and these arguments."""


@runtime_checkable
class CheckpointHandlerRegistry(Protocol):
    """Handlers by item name and argument class."""

    def add(
        self,
        item: str | None,
        args: Any,
        handler: CheckpointHandler | type[CheckpointHandler] | None = None,
    ) -> None:
        """Register a handler of an item, or of all items."""
        ...

    def get(self, item: str | None, args: Any) -> CheckpointHandler:
        """Return the handler of an item."""
        ...

    def has(self, item: str | None, args: Any) -> bool:
        """Return whether an item has a handler."""
        ...

    def get_all_entries(self) -> Mapping[Key, CheckpointHandler]:
        """Return all handlers by item and argument class."""
        ...


class DefaultCheckpointHandlerRegistry(CheckpointHandlerRegistry):
    """Handlers by item name and argument class; Orbax's interface."""

    def __init__(self, other_registry: CheckpointHandlerRegistry | None = None) -> None:
        """Make a registry, optionally with the entries of another."""
        self._entries: dict[Key, CheckpointHandler] = {}
        if other_registry is not None:
            self._entries.update(other_registry.get_all_entries())

    @override
    def add(
        self,
        item: str | None,
        args: object,
        handler: CheckpointHandler | type[CheckpointHandler] | None = None,
    ) -> None:
        """Register a handler.

        Args:
            item: Name of the item; None for all items.
            args: An argument class or object.
            handler: A handler or its class; None for the one to which the arguments belong.

        Raises:
            AlreadyExistsError: The entry exists.
            ValueError: The arguments belong to no handler.
        """
        key = item, _class_of(args)
        if key in self._entries:
            raise AlreadyExistsError(
                f"item {item!r} has a handler for {key[1].__name__} already: {self._entries[key]!r}"
            )
        handler = handler or handler_class_of(args)
        self._entries[key] = handler() if isinstance(handler, type) else handler

    @override
    def has(self, item: str | None, args: object) -> bool:
        """Return whether the item, or all items, have a handler for these arguments."""
        return self._find(item, args) is not None

    @override
    def get(self, item: str | None, args: object) -> CheckpointHandler:
        """Return the handler of an item.

        Raises:
            NoEntryError: It has none.
        """
        found = self._find(item, args)
        if found is None:
            raise NoEntryError(f"no handler for item {item!r} with {_class_of(args).__name__}")
        return found

    def find(self, item: str, args: object, *, for_save: bool) -> CheckpointHandler | None:
        """Return the handler of an item for a save or restore, None if the registry has none.

        Args:
            item: The item.
            args: Its arguments: of a registered class, a subclass of it, or another class that the
                handler accepts.
            for_save: Whether the call saves rather than restores.

        Raises:
            ValueError: The item has handlers, but none accepts these arguments.
        """
        found = self._find(item, args)
        if found is not None or args is None:
            return found
        own = [(kind, h) for (name, kind), h in self._entries.items() if name == item]
        position = 0 if for_save else 1
        for kind, handler in own:
            if isinstance(args, kind) or takes_args(type(handler), args, position):
                return handler
        if own:
            raise ValueError(
                f"Item {item!r} is registered for {', '.join(k.__name__ for k, _ in own)}; found "
                f"{type(args).__name__}, which no handler of the item takes. Give one of these, or "
                f"register a handler for {type(args).__name__}."
            )
        for (name, kind), handler in self._entries.items():
            if name is None and isinstance(args, kind):
                return handler
        return None

    @override
    def get_all_entries(self) -> Mapping[Key, CheckpointHandler]:
        """Return all handlers by item and argument class."""
        return MappingProxyType(self._entries)

    def _find(self, item: str | None, args: object) -> CheckpointHandler | None:
        kind = _class_of(args)
        found = self._entries.get((item, kind)) or self._entries.get((None, kind))
        if found is None and args is None:
            # the name under which the item was saved suffices
            of_item = [h for (name, _), h in self._entries.items() if name == item]
            return of_item[0] if of_item else None
        return found


def create_default_handler_registry(
    **items_to_handlers: CheckpointHandler,
) -> DefaultCheckpointHandlerRegistry:
    """Return a registry with the handlers of some items.

    Raises:
        ValueError: A handler has no registered argument classes.
    """
    registry = DefaultCheckpointHandlerRegistry()
    for item, handler in items_to_handlers.items():
        for args_cls in dict.fromkeys(get_registered_args_cls(handler)):
            registry.add(item, args_cls, handler)
    return registry


def find_handler_class(typestr: str) -> type[CheckpointHandler]:
    """Return the handler class with a recorded name: built-in, imported, or from a plug-in.

    Raises:
        PluginConflictError: Several plug-ins provide it.
        ValueError: No such class exists, or the plug-in cannot be used.
    """
    if typestr in _LATER:
        importlib.import_module(f"orbit_ckpt._src.items.{_LATER[typestr]}")
    known = ARGUMENTS.handler_named(typestr)
    if known is not None:
        return known
    provided = PLUGINS.named(typestr)
    if provided is not None:
        return provided
    module, _, name = typestr.rpartition(".")
    imported = getattr(sys.modules.get(module), name, None)
    if isinstance(imported, type) and registered_args(imported) is not None:
        return cast(type[CheckpointHandler], imported)  # registered with Orbax
    raise ValueError(
        f"no item handler {typestr!r} is known here. Import the module that defines it, or give "
        "arguments for the item."
    )


def _prepare_plugin(plugin: object) -> type[CheckpointHandler]:
    """Return the item handler class that a plug-in provides.

    Raises:
        TypeError: The plug-in provides something else.
    """
    if isinstance(plugin, type) and hasattr(plugin, "save") and hasattr(plugin, "restore"):
        return cast(type[CheckpointHandler], plugin)
    raise TypeError(f"{plugin!r} is no class with the methods of an item handler")


PLUGINS = PluginRegistry("orbit_ckpt.items", _prepare_plugin)
"""Classes of item handlers of installed packages; the entry points have their typestrs as names."""


def _class_of(args: object) -> type:
    return args if isinstance(args, type) else type(args)


def handler_class_in(directory: Path, typestr: str | None) -> type[CheckpointHandler]:
    """Return the class of the handler that wrote an item.

    Orbax up to 0.11.0 does not record it, and its v1 API records its own classes; trees, random
    keys and JSON are then detected from the files.

    Args:
        directory: The item's directory.
        typestr: The recorded name, if any.

    Raises:
        ValueError: The handler is unknown and cannot be detected.
    """
    if typestr is not None:
        try:
            return find_handler_class(typestr)
        except ValueError:
            if not typestr.startswith(_ORBAX):
                raise
    found = _V1_CLASSES.get((typestr or "").rpartition("handlers.")[2]) or _infer(directory)
    if found is None:
        name = directory.name
        raise ValueError(
            f"It is not known how item {name!r} was saved: {typestr or 'nothing'} is recorded, and "
            f"its files do not tell ({describe_directory(directory)}). Give arguments for it, for "
            f"example args.Composite({name}=args.StandardRestore())."
        )
    return found


def _infer(directory: Path) -> type[CheckpointHandler] | None:
    names = {entry.name for entry in directory.iterdir()} - {COMMIT_MARKER, MANIFEST}
    for key, typestr in _RANDOM_KEYS.items():
        if names == {key, f"{key}_metadata"}:
            return find_handler_class(typestr)
    if holds_tree(directory):
        return PyTreeHandler
    handler = JsonHandler()
    if names == {handler.file_in(directory)}:
        try:
            handler.restore(directory)
        except FormatError:
            return None
        return JsonHandler
    return None
