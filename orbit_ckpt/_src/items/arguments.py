"""The argument classes of item handlers: their registry, and checks of argument objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from orbit_ckpt._src.items.base import CheckpointHandler, name_of, typestr_of
from orbit_ckpt._src.items.foreign import (
    foreign_args,
    foreign_handler_class,
    is_foreign_args,
    is_foreign_args_class,
)
from orbit_ckpt._src.runtime.checks import depth_of, show


class CheckpointArgs:
    """Base of the argument classes of item handlers."""


@dataclass
class PassedArgs(CheckpointArgs):
    """Arguments for a handler without argument classes, passed on unchanged.

    Attributes:
        args: Positional arguments of `save` or `restore` after the directory.
        kwargs: Named arguments.
    """

    args: Sequence[object] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict[str, object])


ArgsT = TypeVar("ArgsT", bound=CheckpointArgs)

_ArgsByHandler = dict[type, tuple[type[CheckpointArgs], ...]]


class ArgumentsRegistry:
    """The argument classes of item handlers, and the handlers by argument class and by typestr.

    Registrations are inherited: a handler has the argument classes of its nearest registered base,
    and an argument class belongs to the handler of its nearest registered base.
    """

    def __init__(self) -> None:
        self._classes: tuple[_ArgsByHandler, _ArgsByHandler] = ({}, {})  # for save, for restore
        self._handlers: dict[type, type[CheckpointHandler]] = {}
        self._typestrs: dict[str, type[CheckpointHandler]] = {}

    def add(
        self,
        handler_cls: type,
        args_cls: type[CheckpointArgs],
        *,
        for_save: bool,
        for_restore: bool,
    ) -> None:
        """Register an argument class for a handler class.

        A class that is defined again, as in a notebook, replaces its predecessor.
        """
        for classes, is_wanted in zip(self._classes, (for_save, for_restore), strict=True):
            if is_wanted:
                classes[handler_cls] = _with_class(classes.get(handler_cls, ()), args_cls)
        self._handlers[args_cls] = handler_cls
        typestr = typestr_of(handler_cls)
        if name_of(self._typestrs.setdefault(typestr, handler_cls)) == name_of(handler_cls):
            self._typestrs[typestr] = handler_cls

    def depth_of(self, handler_cls: type, position: int) -> int | None:
        """Return the MRO index of the class that has classes for save (0) or restore (1)."""
        known = self._classes[position]
        return next((i for i, c in enumerate(handler_cls.__mro__) if c in known), None)

    def own(self, handler_cls: type, position: int) -> tuple[type[CheckpointArgs], ...]:
        """Return a handler's own classes for save (0) or restore (1), the preferred one first."""
        depth = self.depth_of(handler_cls, position)
        return () if depth is None else self._classes[position][handler_cls.__mro__[depth]]

    def all(self, handler_cls: type, position: int) -> list[type]:
        """Return the classes of a handler and all its bases for save (0) or restore (1)."""
        known = self._classes[position]
        return [args_cls for base in handler_cls.__mro__ for args_cls in known.get(base, ())]

    def handler_of(self, args_cls: type) -> type[CheckpointHandler] | None:
        """Return the handler class to which an argument class belongs."""
        bases = (base for base in args_cls.__mro__ if base in self._handlers)
        return next((self._handlers[base] for base in bases), None)

    def handler_named(self, typestr: str) -> type[CheckpointHandler] | None:
        """Return the handler class with a typestr."""
        return self._typestrs.get(typestr)


def _with_class(
    classes: tuple[type[CheckpointArgs], ...], added: type[CheckpointArgs]
) -> tuple[type[CheckpointArgs], ...]:
    kept = tuple(added if name_of(c) == name_of(added) else c for c in classes)
    return kept if added in kept else (*classes, added)


ARGUMENTS = ArgumentsRegistry()
"""The registry that `register_with_handler` extends."""


def register_with_handler(
    handler_cls: type,
    for_save: bool = False,
    for_restore: bool = False,
) -> Callable[[type[ArgsT]], type[ArgsT]]:
    """Return a class decorator that registers an argument class with a handler class.

    A handler may have several. Fields given instead of an argument object go into the first one.

    Raises:
        ValueError: Neither `for_save` nor `for_restore` is set.
        TypeError: The decorated class is not derived from `CheckpointArgs`.
    """
    if not for_save and not for_restore:
        raise ValueError("Set for_save or for_restore: the arguments must be for something.")

    def register(args_cls: type[ArgsT]) -> type[ArgsT]:
        kind = cast(object, args_cls)
        if not (isinstance(kind, type) and is_args_class(kind)):
            raise TypeError(
                f"{args_cls!r} is not derived from CheckpointArgs, so it cannot hold the arguments "
                f"of {handler_cls.__qualname__}; derive it from args.CheckpointArgs."
            )
        ARGUMENTS.add(handler_cls, args_cls, for_save=for_save, for_restore=for_restore)
        return args_cls

    return register


def registered_args(handler_cls: type) -> tuple[type[CheckpointArgs], type[CheckpointArgs]] | None:
    """Return a handler's argument classes for save and restore, None if it has none.

    They are registered here, or with Orbax if that has been imported. The first of several counts.
    """
    save, restore = ARGUMENTS.own(handler_cls, 0), ARGUMENTS.own(handler_cls, 1)
    return (save[0], restore[0]) if save and restore else foreign_args(handler_cls)


def has_registered_args(handler: object) -> bool:
    """Return whether a handler, or handler class, has registered argument classes."""
    return registered_args(handler if isinstance(handler, type) else type(handler)) is not None


def get_registered_args_cls(
    handler: object,
) -> tuple[type[CheckpointArgs], type[CheckpointArgs]]:
    """Return the argument classes of a handler or handler class, for save and for restore.

    Raises:
        ValueError: It has none.
    """
    kind = handler if isinstance(handler, type) else type(handler)
    found = registered_args(kind)
    if found is None:
        raise ValueError(
            f"{kind.__qualname__} has no argument classes for save and restore. Register them with "
            "register_with_handler."
        )
    return found


def own_args(handler_cls: type, position: int) -> type[CheckpointArgs] | None:
    """Return the class to build from a caller's fields for `save` (0) or `restore` (1).

    None if there is none, or if the class is inherited and the method is not: as in Orbax, an
    override receives the caller's arguments unchanged, unless its first parameter is `args`.
    """
    classes = registered_args(handler_cls)
    if classes is None:
        return None
    methods = ("restore",) if position else ("save", "async_save")
    depth = ARGUMENTS.depth_of(handler_cls, position)
    is_inherited = depth is not None and any(depth_of(handler_cls, m) < depth for m in methods)
    if is_inherited and not _begins_with_args(handler_cls, methods):
        return None
    return classes[position]


def _begins_with_args(handler_cls: type, methods: Sequence[str]) -> bool:
    """Return whether the most derived of some methods takes `args` right after the directory."""
    method = min(methods, key=lambda name: depth_of(handler_cls, name))
    parameters = list(inspect.signature(getattr(handler_cls, method)).parameters.values())[2:3]
    return any(p.name == "args" and p.kind is not p.VAR_POSITIONAL for p in parameters)


def takes_args(handler_cls: type, args: object, position: int) -> bool:
    """Return whether arguments suit a handler's `save` (0) or `restore` (1).

    They do if their class is registered for the handler or one of its bases, derives from such a
    class, or is extended by one.
    """
    kind = type(args)
    if kind in (CheckpointArgs, PassedArgs):
        return kind is PassedArgs
    known = ARGUMENTS.all(handler_cls, position)
    foreign = foreign_args(handler_cls)
    known += [] if foreign is None else [foreign[position]]
    if not known:
        return _accepts_args(handler_cls, position)
    return any(isinstance(args, c) or issubclass(c, kind) for c in known)


def _accepts_args(handler_cls: type, position: int) -> bool:
    """Return whether a method of a handler without argument classes has a parameter `args`."""
    methods = ("restore",) if position else ("save", "async_save")
    method = min(methods, key=lambda name: depth_of(handler_cls, name))
    parameters = inspect.signature(getattr(handler_cls, method)).parameters.values()
    return any(p.name == "args" or p.kind is p.VAR_KEYWORD for p in parameters)


def is_args(value: object) -> bool:
    """Return whether a value is an argument object, this library's or Orbax's."""
    return isinstance(value, CheckpointArgs) or is_foreign_args(value)


def is_args_class(kind: type) -> bool:
    """Return whether a class is an argument class, this library's or Orbax's."""
    known: type = kind
    return issubclass(kind, CheckpointArgs) or is_foreign_args_class(known)


def args_name(args: object) -> str:
    """Return the public name of arguments or their class, such as `args.StandardSave`."""
    kind = args if isinstance(args, type) else type(args)
    is_ours = kind.__module__.startswith("orbit_ckpt.")
    return f"args.{kind.__name__.removesuffix('Args')}" if is_ours else name_of(kind)


def check_args(name: str, args: object) -> None:
    """Check that a value is an argument object.

    Args:
        name: Its name in messages.
        args: The value.

    Raises:
        TypeError: It is an argument class.
        ValueError: It is something else, such as the tree itself.
    """
    if isinstance(args, type) and is_args_class(args):
        call = f"{args_name(args)}(...)"
        raise TypeError(f"{name} is the class {args_name(args)}. Give an object of it: {call}.")
    if not is_args(args):
        raise ValueError(
            f"{name} must be CheckpointArgs, found {show(args)}. Put it into the arguments of its "
            "handler: args.StandardSave(tree) to save, args.StandardRestore(tree) to restore."
        )


def wrong_args(handler_cls: type, args: object, position: int) -> str:
    """Return the message about arguments that do not suit a handler's save or restore."""
    classes = registered_args(handler_cls)
    method = ("save", "restore")[position]
    if classes is None:
        return (
            f"args: {handler_cls.__qualname__} has no argument classes, and its {method} does not "
            f"take args, found {args_name(args)}. Save the item with a Checkpointer or legacy "
            "CheckpointManager, which pass it on, or register classes with register_with_handler."
        )
    wanted = args_name(classes[position])
    return (
        f"args: {handler_cls.__qualname__} takes {wanted} to "
        f"{method}, found {args_name(args)}. Give {wanted}(...)."
    )


def handler_class_of(arg: object) -> type[CheckpointHandler]:
    """Return the handler class of an argument object or class, registered here or with Orbax.

    Raises:
        ValueError: It belongs to no handler.
    """
    kind = arg if isinstance(arg, type) else type(arg)
    found = ARGUMENTS.handler_of(kind) or foreign_handler_class(arg)
    if found is None:
        if not isinstance(arg, type):
            check_args("args", arg)
        raise ValueError(
            f"{kind.__qualname__} belongs to no item handler; decorate it with "
            "register_with_handler."
        )
    return cast(type[CheckpointHandler], found)
