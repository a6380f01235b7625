"""Choose the type handler of a leaf.

On save a handler is looked up by the leaf's type: among those registered explicitly, then the
built-in ones, then plug-ins; in each by the nearest class of the type's method resolution order. On
restore it is looked up by the recorded typestr, in the same order of registrations. Installing a
package therefore never changes how a built-in type is written.

The built-in handlers need JAX, which the first lookup imports. Metadata needs neither.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Mapping
from typing import TypeVar

import numpy as np

from orbit_ckpt._src.metadata.schema import NUMPY_ARRAY, UNKNOWN_TYPE
from orbit_ckpt._src.plugins import Plugin, PluginRegistry, choose
from orbit_ckpt._src.runtime.checks import as_flag, check_callable, show
from orbit_ckpt._src.type_handlers.base import TypeHandler
from orbit_ckpt._src.type_handlers.described import BUILT_IN, LeafDescriber

Predicate = Callable[[type], bool]
T = TypeVar("T")


class TypeHandlerRegistry:
    """Type handlers by type and by typestr."""

    def __init__(self) -> None:
        self._explicit = _Layer()
        self._builtin: _Layer | None = None
        self._plugins: _PluginLayer | None = None
        self._found: dict[type, TypeHandler | None] = {}

    def add(
        self,
        ty: type,
        handler: TypeHandler,
        func: Predicate | None = None,
        override: bool = False,
        ignore_warnings: bool = False,  # noqa: ARG002 - Orbax's signature
    ) -> None:
        """Register a handler for a type and its subclasses.

        Args:
            ty: The type.
            handler: Its handler.
            func: Returns whether the handler accepts a type, instead of subclassing `ty`.
            override: Whether to replace a handler registered for the same type, or under the same
                typestr.
            ignore_warnings: Ignored; Orbax has it.

        Raises:
            TypeError: `ty` is not a class, or `handler` not a type handler.
            ValueError: The type or the typestr has a handler and `override` is not set.
        """
        _check_handler(ty, handler, func)
        override = as_flag("override", override)
        if not override:
            self._check_typestr(ty, handler)
        self._explicit.add(ty, handler, func, override=override)
        self._found.clear()

    def _check_typestr(self, ty: type, handler: TypeHandler) -> None:
        """Check that another type's handler does not shadow a built-in reader."""
        typestr = handler.typestr()
        built_in = self._builtin_layer().by_typestr(typestr)
        own = self._builtin_layer().by_type(ty)
        if built_in is not None and (own is None or own.typestr() != typestr):
            raise ValueError(
                f"The typestr {typestr!r} of {type(handler).__qualname__} is that of "
                f"{type(built_in).__qualname__}, whose leaves it would restore too. Return another "
                "typestr, or pass override=True."
            )

    def copied(self) -> TypeHandlerRegistry:
        """Return a registry with the same registrations."""
        copied = TypeHandlerRegistry()
        copied._explicit = self._explicit.copy()
        return copied

    @contextlib.contextmanager
    def scope(self) -> Generator[None]:
        """Undo at the end of a `with` block what is registered within it."""
        before = self._explicit
        self._explicit = before.copy()
        try:
            yield
        finally:
            self._explicit = before
            self._found.clear()

    def get(self, ty: type | str) -> TypeHandler:
        """Return the handler of a type, or of a typestr.

        Raises:
            ValueError: None is registered.
        """
        handler = self._by_typestr(ty) if isinstance(ty, str) else self._by_type(ty)
        if handler is None:
            known = ", ".join(t.__name__ for t in self.supported_types())
            name = repr(ty) if isinstance(ty, str) else f"{ty.__module__}.{ty.__qualname__}"
            raise ValueError(
                f"TypeHandler lookup failed for: {name} (registered: {known}). Register one with "
                "register_type_handler."
            )
        return handler

    def has(self, ty: type | str) -> bool:
        """Return whether a type, or a typestr, has a handler."""
        return (self._by_typestr(ty) if isinstance(ty, str) else self._by_type(ty)) is not None

    def describer(self, typestr: str) -> LeafDescriber | None:
        """Return the describer of stored leaves of a typestr, None without one.

        That is their handler, except that leaves of the built-in types are described without JAX.
        """
        if typestr == UNKNOWN_TYPE:
            return self._explicit.by_type(np.ndarray) or BUILT_IN[NUMPY_ARRAY]
        found = self._explicit.by_typestr(typestr) or BUILT_IN.get(typestr)
        found = found or self._plugin_layer().by_typestr(typestr)
        # last, because making the built-in handlers imports JAX
        return found or self._builtin_layer().by_typestr(typestr)

    def supported_types(self) -> list[type]:
        """Return the types that handlers are registered for."""
        return [*self._explicit.types, *self._builtin_layer().types]

    def _by_type(self, ty: type) -> TypeHandler | None:
        if not isinstance(ty, type):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
            raise TypeError(f"ty must be a type or a typestr, found {show(ty)}. Give its class.")
        if ty not in self._found:
            found = self._explicit.by_type(ty) or self._of_lazy(ty)
            found = found or self._builtin_layer().by_type(ty)
            self._found[ty] = found or self._plugin_layer().by_type(ty)
        return self._found[ty]

    def _of_lazy(self, ty: type) -> TypeHandler | None:
        """Return a handler that writes lazy arrays like the handler of their values."""
        from orbit_ckpt._src.type_handlers.builtin import lazy_handler  # noqa: PLC0415 - imports JAX

        return lazy_handler(ty, self._explicit.by_type)

    def _by_typestr(self, typestr: str) -> TypeHandler | None:
        found = self._explicit.by_typestr(typestr) or self._builtin_layer().by_typestr(typestr)
        return found or self._plugin_layer().by_typestr(typestr)

    def _builtin_layer(self) -> _Layer:
        """Return the built-in handlers, importing JAX on first use."""
        if self._builtin is None:
            from orbit_ckpt._src.type_handlers.builtin import built_in_handlers  # noqa: PLC0415 - as above

            self._builtin = layer = _Layer()
            for ty, handler in built_in_handlers():
                layer.add(ty, handler, None, override=True)
        return self._builtin

    def _plugin_layer(self) -> _PluginLayer:
        if self._plugins is None:
            self._plugins = _PluginLayer()
        return self._plugins


def _check_handler(ty: object, handler: object, func: object) -> None:
    """Check a registration.

    Raises:
        TypeError: The handler is not one, such as a class of them; or the type is missing.
    """
    if not isinstance(ty, type):
        raise TypeError(
            f"ty must be a class, found {show(ty)}. Register a handler for the class of the leaves."
        )
    if isinstance(handler, type):
        raise TypeError(
            f"handler must be a type handler, found {show(handler)}. Give an object of it, made by "
            "calling it."
        )
    methods = ("typestr", "serialize", "deserialize")
    missing = [name for name in methods if not callable(getattr(handler, name, None))]
    if missing:
        raise TypeError(
            f"handler must be a type handler, found {show(handler)}, without {missing[0]}(). "
            "Derive a class from type_handlers.TypeHandler, and give an object of it."
        )
    check_callable("func", func, "Give one that says of a class whether the handler takes it.")


_Provided = tuple[tuple[type, ...], TypeHandler]


def _prepare_plugin(plugin: object) -> _Provided:
    """Return the types of a plug-in, from its attribute `types`, and the handler.

    Raises:
        TypeError: It is not a type handler, or does not name its types.
    """
    handler: object = plugin() if isinstance(plugin, type) else plugin
    if not isinstance(handler, TypeHandler):
        raise TypeError(f"{handler!r} does not have the methods of a TypeHandler")
    given: Collection[object] = getattr(handler, "types", ())
    types = tuple(ty for ty in given if isinstance(ty, type))
    if not types or len(types) < len(given):
        raise TypeError(f"{handler!r} does not say in `types` which classes it handles")
    handler.typestr()
    return types, handler


PLUGINS = PluginRegistry("orbit_ckpt.type_handlers", _prepare_plugin)
"""Type handlers of installed packages, with the types that they handle."""


class _Layer:
    """Registrations of equal precedence."""

    def __init__(self) -> None:
        self.types: dict[type, TypeHandler] = {}
        self._predicates: dict[type, Predicate] = {}
        self._typestrs: dict[str, TypeHandler] = {}

    def copy(self) -> _Layer:
        found = _Layer()
        found.types |= self.types
        found._predicates |= self._predicates
        found._typestrs |= self._typestrs
        return found

    def add(
        self, ty: type, handler: TypeHandler, func: Predicate | None, *, override: bool
    ) -> None:
        if ty in self.types and not override:
            raise ValueError(
                f"A type handler for {ty.__module__}.{ty.__qualname__} is registered already; "
                "pass override=True to replace it."
            )
        typestr = handler.typestr()
        taken = self._typestrs.get(typestr)
        if taken is not None and type(taken) is not type(handler) and not override:
            raise ValueError(
                f"The typestr {typestr!r} belongs to {type(taken).__qualname__}; checkpoints "
                "could not tell the two apart. Return another typestr, or pass override=True."
            )
        self.types[ty] = handler
        self._typestrs[typestr] = handler
        self._predicates.pop(ty, None)
        if func is not None:
            self._predicates[ty] = func

    def by_type(self, ty: type) -> TypeHandler | None:
        for base, func in self._predicates.items():
            if func(ty):
                return self.types[base]
        nominal = {base: h for base, h in self.types.items() if base not in self._predicates}
        return _nearest(ty, nominal)

    def by_typestr(self, typestr: str) -> TypeHandler | None:
        return self._typestrs.get(typestr)


class _PluginLayer:
    """Handlers of plug-ins; several may claim a type or typestr."""

    def __init__(self) -> None:
        self._types: dict[type, list[Plugin[_Provided]]] = {}
        self._typestrs: dict[str, list[Plugin[_Provided]]] = {}
        for plugin in PLUGINS.usable():
            types, handler = plugin.get()
            for ty in types:
                self._types.setdefault(ty, []).append(plugin)
            self._typestrs.setdefault(handler.typestr(), []).append(plugin)

    def by_type(self, ty: type) -> TypeHandler | None:
        found = _nearest(ty, self._types)
        name = f"the type {ty.__module__}.{ty.__qualname__}"
        return choose(found, name).get()[1] if found else None

    def by_typestr(self, typestr: str) -> TypeHandler | None:
        found = self._typestrs.get(typestr)
        return choose(found, f"the typestr {typestr!r}").get()[1] if found else None


def _nearest(ty: type, registered: Mapping[type, T]) -> T | None:
    """Return what is registered for the nearest base of a class."""
    for base in ty.__mro__:
        if base in registered:
            return registered[base]
    # abstract classes such as jax.Array are not in the MRO of their implementations
    return next((found for base, found in registered.items() if issubclass(ty, base)), None)


GLOBAL_TYPE_HANDLER_REGISTRY = TypeHandlerRegistry()
"""The registry used where none is passed."""


def create_type_handler_registry(
    *handlers: tuple[type, TypeHandler],
) -> TypeHandlerRegistry:
    """Return a registry with its own handlers besides the built-in ones."""
    registry = TypeHandlerRegistry()
    for ty, handler in handlers:
        registry.add(ty, handler, override=True)
    return registry


def register_type_handler(
    ty: type,
    handler: TypeHandler,
    func: Predicate | None = None,
    override: bool = False,
) -> None:
    """Register a handler in the default registry, see `TypeHandlerRegistry.add`."""
    GLOBAL_TYPE_HANDLER_REGISTRY.add(ty, handler, func, override)


def get_type_handler(ty: type | str) -> TypeHandler:
    """Return the default registry's handler of a type or typestr."""
    return GLOBAL_TYPE_HANDLER_REGISTRY.get(ty)


def has_type_handler(ty: type | str) -> bool:
    """Return whether the default registry has a handler of a type or typestr."""
    return GLOBAL_TYPE_HANDLER_REGISTRY.has(ty)


def supported_types() -> list[type]:
    """Return the types that the default registry has handlers for."""
    return GLOBAL_TYPE_HANDLER_REGISTRY.supported_types()
