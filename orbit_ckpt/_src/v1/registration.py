"""Handlers of checkpointables: where they are registered, and how one is chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointError, CheckpointNotFoundError
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.v1.stored_items import stored_item_handler
from orbit_ckpt._src.v1.types import (
    Handler,
    HandlerEntry,
    StatefulCheckpointable,
)

_logger = logging.getLogger(__name__)

STATE = "state"
"""The name of the checkpointable that `save` writes."""

HandlerT = TypeVar("HandlerT", bound=type[Handler])


class AlreadyExistsError(CheckpointError, ValueError):
    """A handler is registered already."""


class NoEntryError(CheckpointError, KeyError):
    """No registered handler fits."""


class WrongHandlerError(NoEntryError, CheckpointNotFoundError):
    """The handler of a checkpointable does not find what it loads."""


class CheckpointableHandlerRegistry(Protocol):
    """Handler classes, in the order of their registration."""

    def add(
        self,
        handler_type: type[Handler],
        *,
        checkpointable_name: str | None = None,
        secondary_typestrs: Sequence[str] | None = None,
    ) -> CheckpointableHandlerRegistry:
        """Register a handler class.

        Args:
            handler_type: The class; it is made without arguments.
            checkpointable_name: The only checkpointable that it is for, None for all.
            secondary_typestrs: Further recorded names of what it loads.

        Raises:
            AlreadyExistsError: The name, or for all names the class, is registered.
            ValueError: It is no class.
        """
        ...

    def get(self, checkpointable_name: str) -> type[Handler]:
        """Return the handler class of one checkpointable.

        Raises:
            NoEntryError: It has none of its own.
        """
        ...

    def has(self, checkpointable_name: str) -> bool:
        """Return whether a checkpointable has a handler class of its own."""
        ...

    def get_all_entries(self) -> Sequence[HandlerEntry]:
        """Return all handler classes, each with the checkpointable it is for."""
        ...

    def get_secondary_typestrs(self, handler_type: type[Handler]) -> Sequence[str]:
        """Return the further recorded names of what a handler class loads."""
        ...


class _Registry(CheckpointableHandlerRegistry):
    def __init__(self, entries: Sequence[HandlerEntry] = ()) -> None:
        self._entries = list(entries)
        self._typestrs: dict[type[Handler], Sequence[str]] = {}

    @override
    def add(
        self,
        handler_type: type[Handler],
        *,
        checkpointable_name: str | None = None,
        secondary_typestrs: Sequence[str] | None = None,
    ) -> CheckpointableHandlerRegistry:
        if not isinstance(handler_type, type):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
            raise ValueError(
                f"handler_type must be a class, found {show(handler_type)}. Give the handler's "
                "class; it is made without arguments."
            )
        name = checkpointable_name or None
        if name is not None and self.has(name):
            raise AlreadyExistsError(f"{name!r} has a handler already: {self.get(name).__name__}.")
        if name is None and any(kind is handler_type for kind, _ in self._entries):
            raise AlreadyExistsError(f"{handler_type.__name__} is registered already.")
        self._entries.append((handler_type, name))
        if secondary_typestrs is not None:
            self._typestrs[handler_type] = tuple(secondary_typestrs)
        return self

    @override
    def get(self, checkpointable_name: str) -> type[Handler]:
        for kind, name in self._entries:
            if name == checkpointable_name:
                return kind
        raise NoEntryError(f"No handler is registered for {checkpointable_name!r} alone.")

    @override
    def has(self, checkpointable_name: str) -> bool:
        return any(name == checkpointable_name for _, name in self._entries)

    @override
    def get_all_entries(self) -> Sequence[HandlerEntry]:
        return list(self._entries)

    @override
    def get_secondary_typestrs(self, handler_type: type[Handler]) -> Sequence[str]:
        return self._typestrs.get(handler_type, ())

    def __copy__(self) -> _Registry:
        copied = _Registry(self._entries)
        copied._typestrs.update(self._typestrs)
        return copied

    @override
    def __repr__(self) -> str:
        return f"CheckpointableHandlerRegistry({self._entries})"


class ReadOnlyCheckpointableHandlerRegistry(CheckpointableHandlerRegistry):
    """A registry that cannot be changed."""

    def __init__(self, registry: CheckpointableHandlerRegistry) -> None:
        self._registry = registry

    @override
    def add(
        self,
        handler_type: type[Handler],
        *,
        checkpointable_name: str | None = None,
        secondary_typestrs: Sequence[str] | None = None,
    ) -> CheckpointableHandlerRegistry:
        """Refuse.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "The registry of a new Context cannot be changed. Add the handler to a "
            "local_registry() and set context.checkpointables.registry to that, or call "
            "register_handler."
        )

    @override
    def get(self, checkpointable_name: str) -> type[Handler]:
        """Return the handler class of one checkpointable."""
        return self._registry.get(checkpointable_name)

    @override
    def has(self, checkpointable_name: str) -> bool:
        """Return whether a checkpointable has a handler class of its own."""
        return self._registry.has(checkpointable_name)

    @override
    def get_all_entries(self) -> Sequence[HandlerEntry]:
        """Return all handler classes, each with the checkpointable it is for."""
        return self._registry.get_all_entries()

    @override
    def get_secondary_typestrs(self, handler_type: type[Handler]) -> Sequence[str]:
        """Return the further recorded names of what a handler class loads."""
        return self._registry.get_secondary_typestrs(handler_type)


_GLOBAL = _Registry()


def global_registry() -> CheckpointableHandlerRegistry:
    """Return the registry that new contexts begin with."""
    return _GLOBAL


def local_registry(
    other_registry: CheckpointableHandlerRegistry | None = None,
    *,
    include_global_registry: bool = True,
) -> CheckpointableHandlerRegistry:
    """Return a registry of one's own.

    Args:
        other_registry: One whose entries to add last.
        include_global_registry: Whether to begin with the entries of the global registry.
    """
    registry = _Registry()
    sources = [_GLOBAL] if include_global_registry else []
    for source in [*sources, *([other_registry] if other_registry is not None else [])]:
        for kind, name in source.get_all_entries():
            typestrs = source.get_secondary_typestrs(kind)
            registry.add(kind, checkpointable_name=name, secondary_typestrs=typestrs)
    return registry


def register_handler(
    cls: HandlerT,
    *,
    checkpointable_name: str | None = None,
    secondary_typestrs: Sequence[str] | None = None,
) -> HandlerT:
    """Register a handler class globally, as a function or as a class decorator."""
    _GLOBAL.add(cls, checkpointable_name=checkpointable_name, secondary_typestrs=secondary_typestrs)
    return cls


def typestr_of(kind: type[Handler]) -> str:
    """Return the name that a checkpoint records for a handler class."""
    recorded: str | None = getattr(kind, "RECORDED_AS", None)
    return recorded or f"{kind.__module__}.{kind.__qualname__}"


def handler_for_save(
    registry: CheckpointableHandlerRegistry, name: str, checkpointable: object
) -> Handler:
    """Return the handler of a checkpointable.

    A stateful object is saved by the handler for such objects, whatever its name.

    Raises:
        ValueError: It is None.
        NoEntryError: No handler fits.
    """
    if checkpointable is None:
        raise ValueError(f"{name}: None cannot be saved; leave the checkpointable out.")
    fitting = _last_that(registry, lambda handler: handler.is_handleable(checkpointable))
    if fitting is not None and isinstance(checkpointable, StatefulCheckpointable):
        return fitting
    if registry.has(name):
        return _make(name, registry.get(name))
    if fitting is None:
        known = ", ".join(kind.__name__ for kind, _ in registry.get_all_entries())
        raise NoEntryError(
            f"{name}: no handler saves a value of type {type(checkpointable).__qualname__} (there "
            f"are {known}). Register one: handlers.register_handler(...)."
        )
    return fitting


def handler_for_load(
    registry: CheckpointableHandlerRegistry, name: str, abstract: object, typestr: str | None
) -> Handler:
    """Return the handler that loads a checkpointable.

    It is the first that fits of: the one registered for the name, the one that wrote it, and the
    last one registered for all names; for a stateful object the one that wrote it comes first.
    Without any it is that of the v0 API that wrote it, else that of the state.

    Args:
        registry: The handlers.
        name: The checkpointable.
        abstract: How to load it, None for as it was saved.
        typestr: The recorded name of the handler that wrote it.

    Raises:
        NoEntryError: No handler fits.
    """
    own = _make(name, registry.get(name)) if registry.has(name) else None
    writer = _writer(registry, name, typestr)
    candidates = [own, writer]
    if isinstance(abstract, StatefulCheckpointable):
        candidates.reverse()
    for handler in candidates:
        if handler is not None and (abstract is None or handler.is_abstract_handleable(abstract)):
            return handler
    fitting = None
    if abstract is not None:
        fitting = _last_that(registry, lambda h: bool(h.is_abstract_handleable(abstract)))
    if fitting is None and own is None:
        own = stored_item_handler(typestr)
    if fitting is None and own is None and registry.has(STATE):
        if typestr is not None:
            _logger.warning("%s: no handler is known for %r; loading it as a tree", name, typestr)
        own = _make(STATE, registry.get(STATE))
    found = fitting or own
    if found is None:
        raise NoEntryError(
            f"{name}: no handler is registered for it (it was written by {typestr or 'an unknown'} "
            "handler). Register one: handlers.register_handler(...)."
        )
    return found


def _writer(
    registry: CheckpointableHandlerRegistry, name: str, typestr: str | None
) -> Handler | None:
    if typestr is None:
        return None
    for kind, _ in reversed(registry.get_all_entries()):
        if typestr in (typestr_of(kind), *registry.get_secondary_typestrs(kind)):
            return _make(name, kind)
    return None


def _last_that(
    registry: CheckpointableHandlerRegistry, fits: Callable[[Handler], bool]
) -> Handler | None:
    for kind, name in reversed(registry.get_all_entries()):
        if name is None:
            handler = _make(None, kind)
            if fits(handler):
                return handler
    return None


def _make(name: str | None, kind: type[Handler]) -> Handler:
    try:
        return kind()
    except TypeError as error:
        raise ValueError(
            f"{name or 'checkpointable'}: the handler {kind.__qualname__} cannot be made without "
            f"arguments: {error}. Give its parameters defaults."
        ) from error
