"""Several items, each in its own directory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointError, ItemNotFoundError
from orbit_ckpt._src.formats.orbax.layout import find_items
from orbit_ckpt._src.items.arguments import (
    CheckpointArgs,
    check_args,
    handler_class_of,
    own_args,
    registered_args,
    takes_args,
    wrong_args,
)
from orbit_ckpt._src.items.base import (
    ORBAX_PREFIX,
    CheckpointHandler,
    check_handler,
    item_name,
    typestr_of,
    warn_of_unused,
)
from orbit_ckpt._src.items.foreign import foreign_path
from orbit_ckpt._src.items.phases import ItemHandler, restore_item, stage_item
from orbit_ckpt._src.items.registry import (
    CheckpointHandlerRegistry,
    DefaultCheckpointHandlerRegistry,
    handler_class_in,
)
from orbit_ckpt._src.metadata.files import describe_step, read_step
from orbit_ckpt._src.metadata.values import StepMetadata, TreeMetadata, draw_items
from orbit_ckpt._src.runtime.checks import check_methods
from orbit_ckpt._src.runtime.commit import Commit, Progress
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.runtime.process import this_process
from orbit_ckpt._src.storage.atomic import write_marker
from orbit_ckpt._src.storage.inner_path import inner_file
from orbit_ckpt._src.storage.integrity import CheckedDirectory, open_checked
from orbit_ckpt._src.storage.path import PathLike, describe_directory, resolve_path
from orbit_ckpt._src.text import warn_caller
from orbit_ckpt._src.tree.diff import nearest_names

_logger = logging.getLogger(__name__)

_RESERVED_PREFIX = "__"


class Composite(CheckpointArgs, Mapping[str, Any]):
    """Items by name: their arguments for a save or restore, or the restored items.

    `composite.state` and `composite["state"]` are equivalent.
    """

    def __init__(self, **items: Any) -> None:
        """Make one.

        Raises:
            ValueError: A name is no valid directory name, or begins with `__`.
        """
        for name in items:
            if name.startswith(_RESERVED_PREFIX) or not name or "/" in name or name in (".", ".."):
                raise ValueError(f"{name!r} cannot be the name of an item")
        self.__items = items

    def __getitem__(self, key: str) -> Any:
        try:
            return self.__items[key]
        except KeyError:
            raise KeyError(f"there is no item {key!r}; there are {sorted(self.__items)}") from None

    def __getattr__(self, key: str) -> Any:
        items: dict[str, Any] = vars(self).get("_Composite__items", {})  # unset while being copied
        if key not in items:
            raise AttributeError(f"there is no item {key!r}")
        return items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__items)

    def __len__(self) -> int:
        return len(self.__items)

    def __repr__(self) -> str:
        if any(isinstance(item, TreeMetadata) for item in self.__items.values()):
            return draw_items("Composite", self.__items).text()
        return f"Composite({', '.join(f'{k}={v!r}' for k, v in self.__items.items())})"


class CompositeHandler(ItemHandler[Composite], save_args=Composite, restore_args=Composite):
    """Saves and restores several items, each with its own handler.

    The handler of an item is the first of: the one given for its name, the one of its arguments,
    the one that the checkpoint records, the one detected from its files.
    """

    def __init__(
        self,
        *item_names: str,
        composite_options: object = None,
        handler_registry: CheckpointHandlerRegistry | None = None,
        **items_and_handlers: CheckpointHandler | None,
    ) -> None:
        """Make a handler.

        Args:
            *item_names: Names of items whose handlers follow from their arguments. If given, only
                these and `items_and_handlers` can be saved.
            composite_options: Ignored; give options to the checkpointer.
            handler_registry: Handlers by item and arguments.
            **items_and_handlers: Handlers by item.

        Raises:
            ValueError: Items are given in addition to a registry, which defines them.
        """
        warn_of_unused(self, composite_options=composite_options)
        entries = "Give a DefaultCheckpointHandlerRegistry."
        methods = ["get_all_entries"]
        check_methods("handler_registry", handler_registry, methods, entries)
        if handler_registry is not None and (item_names or items_and_handlers):
            names = ", ".join([*item_names, *items_and_handlers])
            raise ValueError(
                f"Items ({names}) are given with a handler_registry; add them to the registry, "
                "or give only one of the two."
            )
        for name, handler in items_and_handlers.items():
            if handler is not None:
                check_handler(f"Item {name!r}", handler)
        is_other = not isinstance(handler_registry, DefaultCheckpointHandlerRegistry | None)
        self._registry = (
            DefaultCheckpointHandlerRegistry(handler_registry) if is_other else handler_registry
        )
        self._names = frozenset([*item_names, *items_and_handlers] if item_names else ())
        self._saved: dict[str, type] = {}
        self._given: dict[str, CheckpointHandler] = {
            name: handler for name, handler in items_and_handlers.items() if handler is not None
        }
        self._made: dict[tuple[str, type], CheckpointHandler] = {}

    def set_handler(self, name: str, handler: CheckpointHandler) -> None:
        """Set the handler of an item."""
        self._given[name] = handler

    def handler_of(self, name: str, args: object, *, for_save: bool = False) -> CheckpointHandler:
        """Return the handler of an item with the given arguments, by default of a restore."""
        return self._handler_for(Path(name), args, for_save=for_save)

    def prefer(self, name: str, handler: CheckpointHandler) -> None:
        """Use a handler for an item wherever its class is required."""
        self._made[name, type(handler)] = handler

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; Orbax's own."""
        return f"{ORBAX_PREFIX}composite_checkpoint_handler.CompositeCheckpointHandler"

    @override
    async def stage(self, directory: Path, args: Composite, *, copy: bool) -> Commit:
        """Copy all items.

        Raises:
            ValueError: An item has no known handler.
        """
        names = sorted(name for name in args if args[name] is not None)
        self.check_names(names)
        handlers = {
            name: self._handler_for(directory / name, args[name], for_save=True) for name in names
        }
        self._saved.update({name: type(handler) for name, handler in handlers.items()})
        commits: dict[str, Commit] = {}
        for name in names:
            try:
                arguments = {"args": args[name]}
                commits[name] = await stage_item(
                    handlers[name], directory / name, arguments, copy=copy
                )
            except Exception as error:  # raised again
                error.add_note(f"in item {name!r}")
                raise

        async def write(name: str) -> None:
            folder = directory / name
            await asyncio.to_thread(folder.mkdir, exist_ok=True)
            await commits[name].run()

        async def write_all() -> None:
            await run_all(write(name) for name in names)

        def finalize() -> None:
            _check_saved_by_all(directory, names)
            for name in names:
                commits[name].finalize()
                write_marker(directory / name, directory / name)

        recorded = {name: typestr_of(handler) for name, handler in handlers.items()}

        def progress() -> Progress:
            return sum((commit.progress for commit in commits.values()), Progress())

        return Commit(write_all, finalize, progress, recorded)

    @override
    def restore(self, directory: PathLike, args: Composite | None = None) -> Composite:
        """Read items.

        Args:
            directory: Where they are.
            args: Arguments of the items to read; None for an item restores it as saved. None, or no
                items, reads all items; one with an unknown handler is then skipped with a warning,
                unless it is the only one.

        Raises:
            ItemNotFoundError: An item is missing.
            ValueError: An item has no known handler.
        """
        path = resolve_path(directory)
        recorded = _recorded(path)
        names = list(args) if args else find_items(path)
        found: dict[str, Any] = {}
        unknown: list[ValueError] = []
        for name in names:
            if not inner_file(path, name).is_dir():
                there = ", ".join(map(repr, find_items(path))) or "none"
                raise ItemNotFoundError(
                    f"No item {name!r} at {path}: {describe_directory(path)}. Ask for one of its "
                    f"items: {there}."
                )
            wanted = args[name] if args else None
            try:
                handler = self._handler_for(path / name, wanted, recorded.get(name))
            except ValueError as error:
                if args:
                    raise
                unknown.append(ValueError(f"item {name!r} is left out: {error}"))
                continue
            try:
                given = {"args": wanted} if wanted is not None else _default_args(name, handler)
                found[name] = restore_item(handler, path, given, item=name)
            except Exception as error:  # raised again
                error.add_note(f"in item {name!r}")
                raise
        if unknown and not found:
            raise ValueError(f"{path}: {unknown[0]}")
        for error in unknown:
            warn_caller(f"{path}: {error}")
        return Composite(**found)

    def metadata(self, directory: PathLike) -> StepMetadata:
        """Return metadata of a checkpoint and each of its items.

        An item whose metadata cannot be read has None; the log gives the reason.
        """
        path = resolve_path(directory)
        recorded = _recorded(path)
        items = {name: self._item_metadata(path, name, recorded) for name in find_items(path)}
        return describe_step(CheckedDirectory(path), Composite(**items))

    @override
    def close(self) -> None:
        """Close the handlers of all items."""
        for handler in (*self._given.values(), *self._made.values()):
            handler.close()

    def _item_metadata(self, path: Path, name: str, recorded: Mapping[str, str]) -> object:
        try:
            directory = inner_file(path, name)
            handler = self._handler_for(directory, None, recorded.get(name))
            describe = getattr(handler, "metadata", None)
            folder = foreign_path(handler, directory)
            return describe(folder) if describe is not None else None
        except NotImplementedError:  # raised by handlers without metadata
            return None
        except Exception as error:  # noqa: BLE001 - a third party's handler may raise anything
            _logger.warning("%s: the metadata of item %r cannot be read: %s", path, name, error)
            return None

    def _handler_for(
        self,
        directory: Path,
        args: object,
        typestr: str | None = None,
        *,
        for_save: bool = False,
    ) -> CheckpointHandler:
        name = directory.name
        if self._registry is not None:
            found = self._registry.find(name, args, for_save=for_save)
            if found is not None:
                return found
        if name in self._given:
            _check_args(name, self._given[name], args, for_save=for_save)
            return self._given[name]
        if args is not None:
            check_args(f"Item {name!r}", args)
        kind = handler_class_in(directory, typestr) if args is None else handler_class_of(args)
        if for_save and self._saved.get(name, kind) is not kind:
            raise ValueError(
                f"Item {name!r} was saved with {self._saved[name].__name__} before; found "
                f"{type(args).__name__}, whose handler is {kind.__name__}. Save it as before, or "
                "under another name."
            )
        if args is not None and not takes_args(kind, args, 0 if for_save else 1):
            raise ValueError(f"Item {name!r}: {wrong_args(kind, args, 0 if for_save else 1)}")
        if (name, kind) not in self._made:
            self._made[name, kind] = kind()
        return self._made[name, kind]

    def check_names(self, names: Sequence[str]) -> None:
        """Check that the handler was made for all these items.

        Raises:
            ValueError: It was not made for one, whose name may be misspelt.
        """
        unknown = [name for name in names if name not in self._names and name not in self._given]
        if not self._names or not unknown:
            return
        near = nearest_names(unknown[0], sorted(self._names))
        raise ValueError(
            f"Item {unknown[0]!r} is not among the items that this handler was made for: "
            f"{sorted(self._names)}"
            + (f"; did you mean {' or '.join(near)}?" if near else ". Add it to item_names.")
        )


def _check_saved_by_all(directory: Path, names: Sequence[str]) -> None:
    """Check that no other process saved an item that this one, the primary, does not have.

    Raises:
        CheckpointError: One did; nothing would finish or list that item.
    """
    if this_process().is_alone:
        return
    others = {child.name for child in directory.iterdir() if child.is_dir()}.difference(names)
    if others:
        raise CheckpointError(
            f"{item_name(directory)}: other processes save items {sorted(others)}, which the "
            f"primary process does not; it saves {list(names)}. Save the same items on all."
        )


def _check_args(name: str, handler: CheckpointHandler, args: object, *, for_save: bool) -> None:
    """Check that arguments suit a handler.

    Raises:
        ValueError: They are another handler's, and would save the item as something else.
    """
    position = 0 if for_save else 1
    if args is not None:
        check_args(f"Item {name!r}", args)
    if args is None or takes_args(type(handler), args, position):
        return
    classes = registered_args(type(handler))
    if classes is None:
        raise ValueError(f"Item {name!r}: {wrong_args(type(handler), args, position)}")
    raise ValueError(
        f"Item {name!r} has the handler {type(handler).__name__}, which takes "
        f"{' and '.join(kind.__name__ for kind in dict.fromkeys(classes))}; found "
        f"{type(args).__module__}.{type(args).__name__}."
    )


def _recorded(path: Path) -> Mapping[str, str]:
    recorded = read_step(open_checked(path)).item_handlers
    return recorded if isinstance(recorded, Mapping) else {}


def _default_args(name: str, handler: CheckpointHandler) -> dict[str, object]:
    """Return the arguments that restore an item as saved.

    Raises:
        ValueError: The handler needs explicit arguments.
    """
    kind = own_args(type(handler), 1)
    if kind is None:
        return {}
    try:
        return {"args": kind()}
    except TypeError as error:
        raise ValueError(
            f"Item {name!r} cannot be restored without arguments ({error}). Give them, as in "
            f"args.Composite({name}={kind.__name__}(...)), with the other items that you want."
        ) from error
