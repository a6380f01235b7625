"""Orbax's interface of item handlers, and the registry of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from orbit_ckpt._src.items.foreign import (
    foreign_args,
    foreign_handler_class,
    is_foreign_args,
    is_foreign_args_class,
)
from orbit_ckpt._src.runtime.checks import depth_of, is_overridden, show
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.futures import Future
from orbit_ckpt._src.storage.layout import TEMPORARY_SUFFIX
from orbit_ckpt._src.text import warn_set

ORBAX_PREFIX = "orbax.checkpoint._src.handlers."
"""What Orbax finds its handlers by; written into checkpoints so that it can restore them."""


_WHY = {
    "memory_limit_options": "give memory_options",
    "multiprocessing_options": (
        "the checkpointer or manager decides which processes save; give it to that"
    ),
    "array_metadata_validator": "processes always compare what they save",
    "enable_pinned_host_transfer": "arrays are copied from devices in another way",
    "is_prioritized_key_fn": "what may change is copied before a save returns",
}


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


@runtime_checkable
class CheckpointHandler(Protocol):
    """Saves and restores one item in its own directory.

    A handler alone is not atomic; use it through a `Checkpointer`. Each handler defines the
    arguments that `save` and `restore` take besides the directory.
    """

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write the item into an existing empty directory."""
        ...

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> object:
        """Read the item."""
        ...

    def finalize(self, directory: Any) -> None:
        """Finish the directory after everything is written, before the commit."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


@runtime_checkable
class AsyncCheckpointHandler(CheckpointHandler, Protocol):
    """An item handler whose saves continue in the background, in Orbax's way."""

    async def async_save(
        self, directory: Any, *args: Any, **kwargs: Any
    ) -> Sequence[Future] | None:
        """Copy what the caller may change; return futures of the write into the directory."""
        ...


@runtime_checkable
class StagingHandler(Protocol):
    """An item handler that saves in two phases."""

    async def stage(self, directory: Path, args: Any, *, copy: bool) -> Commit:
        """Copy an item and return the commit that writes it.

        Args:
            directory: Where to write the item; may not exist yet.
            args: What to save.
            copy: Whether the caller may change the item before the commit has run.
        """
        ...


def item_name(directory: Path) -> str:
    """Return the item's name for messages, from the directory it will be written to."""
    return directory.name.partition(TEMPORARY_SUFFIX)[0]


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
        if _name_of(self._typestrs.setdefault(typestr, handler_cls)) == _name_of(handler_cls):
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
    kept = tuple(added if _name_of(c) == _name_of(added) else c for c in classes)
    return kept if added in kept else (*classes, added)


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


ARGUMENTS = ArgumentsRegistry()
"""What `register_with_handler` registers in, and item handlers are looked up in."""


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
    return f"args.{kind.__name__.removesuffix('Args')}" if is_ours else _name_of(kind)


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


def check_handler(name: str, handler: object) -> None:
    """Check that a value is an item handler.

    Args:
        name: Its name in messages.
        handler: The value.

    Raises:
        TypeError: It is something else, such as a handler class.
    """
    if isinstance(handler, type):
        raise TypeError(
            f"{name} must be an item handler, found {show(handler)}. Give an object of "
            "it, made by calling it."
        )
    if not (hasattr(handler, "save") and hasattr(handler, "restore")):
        raise TypeError(
            f"{name} must be an item handler, with save and restore, found {show(handler)}. Give "
            "PyTreeCheckpointHandler() or StandardCheckpointHandler(), for example."
        )


def handler_class_of(args: object) -> type[CheckpointHandler]:
    """Return the handler class of an argument object or class, registered here or with Orbax.

    Raises:
        ValueError: It belongs to no handler.
    """
    kind = args if isinstance(args, type) else type(args)
    found = ARGUMENTS.handler_of(kind) or foreign_handler_class(args)
    if found is None:
        if not isinstance(args, type):
            check_args("args", args)
        raise ValueError(
            f"{kind.__qualname__} belongs to no item handler; decorate it with "
            "register_with_handler."
        )
    return cast(type[CheckpointHandler], found)


def typestr_of(handler: object) -> str:
    """Return the name that a checkpoint records for a handler or handler class.

    A subclass with its own way to read is recorded by its own name: the base class from which it
    inherits the name could not restore its checkpoints.
    """
    kind = handler if isinstance(handler, type) else type(handler)
    typestr: Callable[[], str] | None = getattr(kind, "typestr", None)
    if typestr is None or is_overridden(kind, "restore", since="typestr"):
        return _name_of(kind)
    return typestr()


def warn_of_unused(handler: object, **given: object) -> None:
    """Warn of constructor options that are set but have no effect.

    Args:
        handler: The handler under construction.
        **given: Option values by name.
    """
    options = {name: (value, _default(value), _WHY[name]) for name, value in given.items()}
    warn_set(type(handler).__qualname__, options)


def _default(value: object) -> object:
    """Return the value of an option that stands for "not set"."""
    if is_dataclass(value):
        return type(value)()
    return False if isinstance(value, bool) else None
