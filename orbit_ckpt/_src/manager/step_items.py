"""Convert between a manager's items and the arguments of a composite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from numpy.typing import DTypeLike

from orbit_ckpt._src.checkpointer.api import load, prepare_tree
from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer
from orbit_ckpt._src.checkpointer.load_options import LoadOptions
from orbit_ckpt._src.checkpointer.save import handled_item
from orbit_ckpt._src.checkpointer.telemetry import reported_restore
from orbit_ckpt._src.errors import CheckpointNotFoundError
from orbit_ckpt._src.formats.orbax.layout import holds_tree, is_tree
from orbit_ckpt._src.formats.runs import foreign_step
from orbit_ckpt._src.guards import is_mapping
from orbit_ckpt._src.items.arguments import (
    CheckpointArgs,
    PassedArgs,
    check_args,
    own_args,
    registered_args,
)
from orbit_ckpt._src.items.base import CheckpointHandler
from orbit_ckpt._src.items.composite import Composite, CompositeHandler
from orbit_ckpt._src.items.json import JsonHandler
from orbit_ckpt._src.items.pytree import PyTreeMetadataOptions, PyTreeRestoreArgs
from orbit_ckpt._src.items.registry import CheckpointHandlerRegistry
from orbit_ckpt._src.items.standard import StandardHandler, StandardRestoreArgs, StandardSaveArgs
from orbit_ckpt._src.manager.index import METRICS_ITEM
from orbit_ckpt._src.manager.step_checks import Handlers, check_handlers, check_items
from orbit_ckpt._src.metadata.files import read_step
from orbit_ckpt._src.metadata.schema import StepDocument
from orbit_ckpt._src.metadata.values import StepMetadata
from orbit_ckpt._src.runtime.checks import check_elements, check_mapping
from orbit_ckpt._src.runtime.commit import ItemToSave
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.store_view import viewing
from orbit_ckpt._src.transform.patterns import PatternMap
from orbit_ckpt._src.transform.state import StateFunction

DEFAULT_ITEM = "default"
"""Name of the only item of a step that has no names for its items."""

RESERVED_ITEMS: Sequence[str] = ()
"""Names that no item may have."""


@dataclass(frozen=True, slots=True)
class ItemRequest:
    """The arguments of a restore.

    Attributes:
        items: Target of the only item, or targets by name; None for all as saved.
        kwargs: Further arguments of the only handler, or of handlers by item.
        args: Arguments of the only item, or a `Composite`.
        options: Options of `load`.
    """

    items: object = None
    kwargs: Mapping[str, Any] | None = None
    args: object = None
    options: LoadOptions = field(default_factory=LoadOptions)


class StepItems:
    """The items of a run: either one without a name, or several with names.

    The manager's arguments decide which of the two; otherwise its first save or restore does.
    """

    def __init__(
        self,
        handlers: Handlers,
        item_names: Sequence[str] | None,
        registry: CheckpointHandlerRegistry | None,
    ) -> None:
        """Make one.

        Args:
            handlers: The handler of the only item, or handlers by item.
            item_names: Names of items whose handlers follow from their arguments.
            registry: Handlers by item and arguments.

        Raises:
            TypeError: `item_names` is a single string.
            ValueError: Items are given in two exclusive ways.
        """
        if isinstance(item_names, str):
            raise TypeError(f"item_names is {item_names!r}; give a list of names.")
        if item_names is not None:
            check_elements("item_names", item_names, ["isidentifier"], "Give a list of str.")
        check_handlers(handlers)
        if registry is not None and (handlers is not None or item_names is not None):
            other = "item_handlers" if handlers is not None else "item_names"
            raise ValueError(
                f"Both handler_registry and {other} are given; add the items to the registry, or "
                "give only one of the two."
            )
        if item_names is not None and handlers is not None and not isinstance(handlers, Mapping):
            raise ValueError(
                f"item_names={list(item_names)} is given with one handler "
                f"({type(handlers).__name__}), which is for a step with one item without a name; "
                "give item_handlers={name: handler}, or leave item_names out."
            )
        self._single: bool | None = None
        named: dict[str, CheckpointHandler | None] = dict.fromkeys(item_names or ())
        if isinstance(handlers, Mapping):
            named.update(handlers)
        elif handlers is not None:
            named[DEFAULT_ITEM] = handlers
            self._single = True
        if self._single is None and named:
            self._single = False
        self._handlers = {name: handler for name, handler in named.items() if handler is not None}
        names: list[str] = [] if self._single else list(named)
        self.handler = CompositeHandler(*names, handler_registry=registry)
        for name, handler in {METRICS_ITEM: JsonHandler(METRICS_ITEM), **self._handlers}.items():
            self.handler.set_handler(name, handler)
        # by default an item is a tree that restores exactly as it was saved
        rich_types = PyTreeMetadataOptions(support_rich_types=True)
        self.handler.prefer(DEFAULT_ITEM, StandardHandler(pytree_metadata_options=rich_types))

    def to_save(
        self,
        items: object,
        kwargs: Mapping[str, Any] | None,
        args: object,
        *,
        cast: PatternMap[object] | DTypeLike | None = None,
        transforms: Sequence[StateFunction] = (),
    ) -> Composite:
        """Return the arguments that save a step.

        Args:
            items: The item, or items by name, if there are no `args`.
            kwargs: Further arguments of the only handler, or of handlers by item.
            args: Arguments of the only item, or a `Composite`.
            cast: As for `save`.
            transforms: As for `save`.

        Raises:
            ValueError: Neither is given, or they contradict the manager's arguments.
        """
        check_mapping("save_kwargs", kwargs, "Give arguments of the handler by name.")
        if (items is None) == (args is None):
            what = "Nothing to save" if args is None else "Two things to save"
            raise ValueError(f"{what}: give an item, or args=.")
        check_items(items)
        known = self._single
        if known is None:
            self._single = not isinstance(args, Composite)
        if cast is not None or transforms:
            return self._changed_tree(items, kwargs, cast, transforms)
        if args is not None:
            try:
                return self._composite(args)
            except ValueError:
                self._single = known
                raise
        if self._takes_trees:
            return Composite(**{DEFAULT_ITEM: StandardSaveArgs(items, **(kwargs or {}))})
        return self._from_items(0, items, kwargs)

    def to_add(self, path: Path, name: str, item: object, args: object) -> ItemToSave:
        """Return an item to add to a step.

        Args:
            path: The step.
            name: The item.
            item: The item itself, or None if its arguments are given.
            args: Its arguments.

        Raises:
            ValueError: The step has no named items, or the name or the arguments do not suit.
        """
        if not name or "/" in name or name.startswith((".", "_")) or name == METRICS_ITEM:
            raise ValueError(f"{name!r} is not a valid item name; give 'ema', for example.")
        if (item is None) == (args is None):
            raise ValueError("Give an item, or args=, and not both.")
        check_items(item)
        if self._single or (path / DEFAULT_ITEM).is_dir() or _holds_one_tree(path):
            raise ValueError(
                f"{path} is one tree without a name, to which no item can be added. Save steps of "
                "named items: item_names=('model', 'ema') for the manager, args.Composite for save."
            )
        if args is None and name in self._handlers:
            args = self._from_items(0, {name: item}, None)[name]
        elif args is None:
            args = StandardSaveArgs(item)
        self.handler.check_names([name])
        handler = self.handler.handler_of(name, args, for_save=True)
        return handled_item(handler, {"args": args})

    def _changed_tree(
        self,
        items: object,
        kwargs: Mapping[str, Any] | None,
        cast: PatternMap[object] | DTypeLike | None,
        transforms: Sequence[StateFunction],
    ) -> Composite:
        """Return the arguments that save a tree with options of `save`.

        Raises:
            ValueError: The item is not a tree that the manager saves by itself.
        """
        if items is None or kwargs is not None or not self._takes_trees:
            raise ValueError(
                "cast= and transforms= are for a step that is one tree, given without handlers and "
                "their arguments: save(step, tree, cast=...). For others, change the tree first, "
                "or give args=StandardSave(tree, save_args=...)."
            )
        tree, save_args = prepare_tree(items, cast, transforms)
        return Composite(**{DEFAULT_ITEM: StandardSaveArgs(tree, save_args)})

    def restore(self, checkpointer: Checkpointer, path: Path, wanted: ItemRequest) -> Any:
        """Restore a step; return its only item, or a `Composite` of all.

        Args:
            checkpointer: Restores the items of a step.
            path: The step.
            wanted: The caller's arguments.

        Raises:
            CheckpointError: A handler failed.
        """
        with viewing([path]), self._looking_at(path):
            if wanted.options:
                return self._load(path, wanted)
            args = self._to_restore(wanted)
            if _holds_one_tree(path):
                return self._unwrap(self._restore_tree(path, args))
            return self._unwrap(checkpointer.restore(path, args=args))

    def metadata(self, checkpointer: Checkpointer, path: Path) -> StepMetadata:
        """Return the metadata of a step; `item_metadata` has the form that `restore` returns."""
        with viewing([path]), self._looking_at(path):
            is_tree = _holds_one_tree(path)
            found = self._tree_metadata(path) if is_tree else checkpointer.metadata(path)
            items = self._unwrap(cast(Any, found.item_metadata))
        return replace(found, item_metadata=items)

    @contextlib.contextmanager
    def _looking_at(self, path: Path) -> Generator[None]:
        """Detect from a step whether there is one item or several, if that is not known.

        If the block fails, the result is forgotten: a step that cannot be restored must not decide
        how the next one is saved.
        """
        known = self._single
        if known is None:
            self._single = (path / DEFAULT_ITEM).is_dir() or _holds_one_tree(path)
        try:
            yield
        except BaseException:
            self._single = known
            raise

    def _to_restore(self, wanted: ItemRequest) -> Composite:
        check_items(wanted.items)
        check_mapping("restore_kwargs", wanted.kwargs, "Give arguments of the handler by name.")
        if wanted.args is not None:
            return self._composite(wanted.args)
        if wanted.items is None and wanted.kwargs is None:
            return Composite(**{DEFAULT_ITEM: None}) if self._single else Composite()
        if self._takes_trees:
            return Composite(
                **{DEFAULT_ITEM: StandardRestoreArgs(wanted.items, **(wanted.kwargs or {}))}
            )
        return self._from_items(1, wanted.items, wanted.kwargs)

    def _load(self, path: Path, wanted: ItemRequest) -> Any:
        """Restore the items of a step that are trees as `load` does, with its options.

        Raises:
            ValueError: Arguments of handlers are given too, or the items to load are not named.
            CheckpointError: A tree cannot be restored.
        """
        options = wanted.options
        if wanted.args is not None or wanted.kwargs is not None:
            raise ValueError(
                f"Options of load ({', '.join(options)}) and arguments of handlers are given; give "
                "the target as items=, or only args=."
            )
        check_items(wanted.items)
        is_tree = _holds_one_tree(path)
        if self._single:
            return load(path if is_tree else path / DEFAULT_ITEM, wanted.items, **options)
        if not is_mapping(wanted.items) or (is_tree and len(wanted.items) > 1):
            raise ValueError(
                f"{path} has several items, and options of load ({', '.join(options)}) are for "
                "trees; name the items to load, with their targets or None: items={'state': None}."
            )
        found = wanted.items.items()
        places = {name: path if is_tree else path / str(name) for name, _ in found}
        return Composite(**{str(n): load(places[n], like, **options) for n, like in found})

    def _restore_tree(self, path: Path, wanted: Composite) -> Composite:
        """Restore a step that is a single tree without items, such as another program's.

        Args:
            path: The step.
            wanted: Arguments by item; the tree becomes the only item named.

        Raises:
            CheckpointNotFoundError: Several items are named.
            CheckpointError: The handler failed.
        """
        if len(wanted) > 1:
            raise CheckpointNotFoundError(
                f"{path} is one tree and has no items, and {sorted(wanted)} were asked for. "
                "Restore one of them, which is then the tree."
            )
        name, args = next(iter(wanted.items()), (DEFAULT_ITEM, None))
        handler = self._tree_handler(name, args)
        given = StandardRestoreArgs() if args is None else args
        if args is None and not isinstance(handler, StandardHandler):
            given = cast(Any, registered_args(type(handler)) or (None, PyTreeRestoreArgs))[1]()
        with reported_restore(path):
            return Composite(**{name: handler.restore(path, args=given)})

    def _tree_metadata(self, path: Path) -> StepMetadata:
        """Return the metadata of a step that is a single tree without items."""
        handler = self._tree_handler(DEFAULT_ITEM, None)
        describe: Callable[[Path], object] | None = getattr(handler, "metadata", None)
        found = None if describe is None else describe(path)
        found = StandardHandler().metadata(path) if found is None else found
        recorded = read_step(CheckedDirectory(path)) if path.is_dir() else StepDocument()
        custom = recorded.custom_metadata or getattr(found, "custom_metadata", None) or {}
        return StepMetadata(
            item_handlers=recorded.item_handlers,
            item_metadata=Composite(**{DEFAULT_ITEM: found}),
            init_timestamp_nsecs=recorded.init_timestamp_nsecs,
            commit_timestamp_nsecs=recorded.commit_timestamp_nsecs,
            custom_metadata=custom,
        )

    def _tree_handler(self, name: str, args: object) -> CheckpointHandler:
        if args is None and name not in self._handlers:
            args = StandardRestoreArgs()
        return self.handler.handler_of(name, args)

    def _unwrap(self, items: Composite) -> Any:  # the only item, whatever it is, or all
        """Return the items of a step in the caller's form."""
        return items.get(DEFAULT_ITEM) if self._single else items

    @property
    def _takes_trees(self) -> bool:
        """Return whether the only item is a pytree, for lack of any other instruction."""
        return self._single is True and DEFAULT_ITEM not in self._handlers

    def _composite(self, args: object) -> Composite:
        check_args("args", args)
        if self._single and isinstance(args, Composite):
            raise ValueError(
                "This manager has one item without a name; give its own arguments, not Composite."
            )
        if self._single:
            return Composite(**{DEFAULT_ITEM: args})
        if not isinstance(args, Composite):
            raise ValueError(
                f"This manager has several items; give args.Composite(name={type(args).__name__}"
                "(...))."
            )
        return args

    def _from_items(self, position: int, items: Any, kwargs: Mapping[str, Any] | None) -> Composite:
        """Return arguments built from items and the fields of their handlers' argument classes."""
        wrap = DEFAULT_ITEM if self._single else None
        by_name: Mapping[str, object] = {wrap: items} if wrap else items or {}
        fields: Mapping[str, Any] = {wrap: kwargs} if wrap else kwargs or {}
        made: dict[str, CheckpointArgs] = {}
        for name in dict.fromkeys([*by_name, *fields]):
            handler = self._handlers.get(name)
            if handler is None:
                raise ValueError(
                    f"It is not known how to save or restore item {name!r}; give args=, or "
                    "item_handlers when the manager is made."
                )
            kind = cast(Any, own_args(type(handler), position))
            more: Mapping[str, Any] = fields.get(name) or {}
            item = by_name.get(name)
            made[name] = PassedArgs((item,), more) if kind is None else kind(item, **more)
        return Composite(**made)


def _holds_one_tree(path: Path) -> bool:
    """Return whether a step is itself a tree without items: another program's or saved directly."""
    if (path / DEFAULT_ITEM).is_dir():
        return False
    if not directory_of(path).has_local_files:
        return is_tree(path)
    return foreign_step(path) is not None or (path.is_dir() and holds_tree(path))
