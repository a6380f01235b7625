"""Convert between a manager's items and the arguments of a composite."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from orbit_ckpt._src.checkpointer.asynchronous import AsyncCheckpointer
from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer
from orbit_ckpt._src.checkpointer.telemetry import reported_restore
from orbit_ckpt._src.errors import CheckpointNotFoundError
from orbit_ckpt._src.formats.orbax.layout import holds_tree, is_tree
from orbit_ckpt._src.formats.runs import foreign_step
from orbit_ckpt._src.guards import is_list_or_tuple, is_mapping
from orbit_ckpt._src.items.base import (
    CheckpointArgs,
    CheckpointHandler,
    PassedArgs,
    check_args,
    check_handler,
    own_args,
    registered_args,
)
from orbit_ckpt._src.items.composite import Composite, CompositeHandler
from orbit_ckpt._src.items.json import JsonHandler, JsonSaveArgs
from orbit_ckpt._src.items.pytree import PyTreeMetadataOptions, PyTreeRestoreArgs
from orbit_ckpt._src.items.registry import DefaultCheckpointHandlerRegistry
from orbit_ckpt._src.items.standard import StandardHandler, StandardRestoreArgs, StandardSaveArgs
from orbit_ckpt._src.manager.index import METRICS_ITEM
from orbit_ckpt._src.manager.options import CheckpointManagerOptions
from orbit_ckpt._src.metadata.files import read_step
from orbit_ckpt._src.metadata.schema import StepDocument
from orbit_ckpt._src.metadata.user_json import plain_scalar
from orbit_ckpt._src.metadata.values import StepMetadata
from orbit_ckpt._src.runtime.checks import check_elements, check_mapping, show
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.integrity import CheckedDirectory

DEFAULT_ITEM = "default"
"""Name of the only item of a step that has no names for its items."""

Handlers = CheckpointHandler | Mapping[str, CheckpointHandler | None] | None


@dataclass(frozen=True, slots=True)
class ItemRequest:
    """The arguments of a restore.

    Attributes:
        items: Target of the only item, or targets by name; None for all as saved.
        kwargs: Further arguments of the only handler, or of handlers by item.
        args: Arguments of the only item, or a `Composite`.
    """

    items: object = None
    kwargs: Mapping[str, Any] | None = None
    args: object = None


class StepItems:
    """The items of a run: either one without a name, or several with names.

    The manager's arguments decide which of the two; otherwise its first save or restore does.
    """

    def __init__(
        self,
        handlers: Handlers,
        item_names: Sequence[str] | None,
        registry: DefaultCheckpointHandlerRegistry | None,
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
        _check_handlers(handlers)
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

    def to_save(self, items: object, kwargs: Mapping[str, Any] | None, args: object) -> Composite:
        """Return the arguments that save a step.

        Args:
            items: The item, or items by name, if there are no `args`.
            kwargs: Further arguments of the only handler, or of handlers by item.
            args: Arguments of the only item, or a `Composite`.

        Raises:
            ValueError: Neither is given, or they contradict the manager's arguments.
        """
        check_mapping("save_kwargs", kwargs, "Give arguments of the handler by name.")
        if (items is None) == (args is None):
            what = "Nothing to save" if args is None else "Two things to save"
            raise ValueError(f"{what}: give an item, or args=.")
        _check_items(items)
        known = self._single
        if known is None:
            self._single = not isinstance(args, Composite)
        if args is not None:
            try:
                return self._composite(args)
            except ValueError:
                self._single = known
                raise
        if self._takes_trees:
            return Composite(**{DEFAULT_ITEM: StandardSaveArgs(items, **(kwargs or {}))})
        return self._from_items(0, items, kwargs)

    def restore(self, checkpointer: Checkpointer, path: Path, wanted: ItemRequest) -> Any:
        """Restore a step; return its only item, or a `Composite` of all.

        Args:
            checkpointer: Restores the items of a step.
            path: The step.
            wanted: The caller's arguments.

        Raises:
            CheckpointError: A handler failed.
        """
        with self._looking_at(path):
            args = self._to_restore(wanted)
            if _holds_one_tree(path):
                return self._unwrap(self._restore_tree(path, args))
            return self._unwrap(checkpointer.restore(path, args=args))

    def metadata(self, checkpointer: Checkpointer, path: Path) -> StepMetadata:
        """Return the metadata of a step; `item_metadata` has the form that `restore` returns."""
        with self._looking_at(path):
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
        _check_items(wanted.items)
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
        describe = getattr(handler, "metadata", StandardHandler().metadata)
        found = describe(path)
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


def with_metrics(args: Composite, metrics: Mapping[str, object]) -> Composite:
    """Add the metrics to the items.

    Raises:
        ValueError: An item already has the name of the metrics.
    """
    if METRICS_ITEM in args:
        raise ValueError("Metrics are given twice: as metrics= and as the item 'metrics'.")
    return Composite(**args, **{METRICS_ITEM: JsonSaveArgs(metrics)})


def _check_handlers(handlers: object) -> None:
    """Check the `item_handlers` of a manager.

    Raises:
        TypeError: It is neither a handler nor handlers by item.
    """
    if is_mapping(handlers):
        for name, handler in handlers.items():
            if handler is not None:
                check_handler(f"item_handlers[{name!r}]", handler)
    elif handlers is not None:
        if is_list_or_tuple(handlers):
            found = show(handlers)
            raise TypeError(
                f"item_handlers must be a handler, or handlers by item, found {found}. "
                "Give {'state': StandardCheckpointHandler()}, for example."
            )
        check_handler("item_handlers", handlers)


def _check_items(items: object) -> None:
    if isinstance(items, CheckpointArgs):
        raise ValueError(f"Found {type(items).__qualname__} for `items`; give it by name: args=...")


def handlers_of(
    checkpointers: Checkpointer | Mapping[str, Checkpointer], handlers: Handlers
) -> tuple[Handlers, bool]:
    """Return the handlers of checkpointers, and whether they save in the background.

    Raises:
        TypeError: One of them is not a checkpointer.
        ValueError: Handlers are given too.
    """
    if handlers is not None:
        raise ValueError("Give checkpointers or item_handlers, not both.")
    given: object = checkpointers
    for name, value in given.items() if is_mapping(given) else [("", given)]:
        _check_checkpointer(f"checkpointers[{name!r}]" if name else "checkpointers", value)
    if isinstance(checkpointers, Mapping):
        is_async = all(isinstance(c, AsyncCheckpointer) for c in checkpointers.values())
        return {name: c.handler for name, c in checkpointers.items()}, is_async
    return checkpointers.handler, isinstance(checkpointers, AsyncCheckpointer)


def _check_checkpointer(name: str, value: object) -> None:
    if isinstance(value, Checkpointer):
        return
    if isinstance(value, CheckpointManagerOptions):
        advice = "Give options by name: options=CheckpointManagerOptions(...)."
    else:
        advice = "Give Checkpointer(handler), or the handler itself as item_handlers=."
    raise TypeError(f"{name} must be a Checkpointer, found {show(value)}. {advice}")


def check_metrics(metrics: object) -> None:
    """Check the metrics of a step; None passes.

    Raises:
        TypeError: They have no names.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f"metrics must be a dict, found {show(metrics)}. Give names too: "
            "metrics={'loss': 0.5}."
        )


def plain_metrics(metrics: Mapping[str, object]) -> dict[str, object]:
    """Convert numpy and JAX scalars in metrics to Python numbers."""

    def plain(value: object) -> object:
        if is_mapping(value):  # JAX would sort the names
            return {name: plain(field) for name, field in value.items()}
        if is_list_or_tuple(value):
            return list(map(plain, value))
        return plain_scalar(value) if getattr(value, "ndim", None) == 0 else value

    return {name: plain(value) for name, value in metrics.items()}
