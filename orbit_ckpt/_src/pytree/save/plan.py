"""Plan the content of a save before anything is written."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import jax
from jax.core import Tracer
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import as_dtype, storable
from orbit_ckpt._src.errors import NameCollisionError, UnsupportedLeafError
from orbit_ckpt._src.metadata.outline import Outline, outline_of
from orbit_ckpt._src.metadata.rich_types import class_name
from orbit_ckpt._src.metadata.schema import LeafDetail
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.storage.layout import (
    RESERVED,
    ZARR2_DOCUMENT,
    ZARR3_DOCUMENT,
    is_process_directory,
)
from orbit_ckpt._src.tree.build import PLACEHOLDER, is_namedtuple
from orbit_ckpt._src.tree.flatten import FlatTree, flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import (
    KeyKind,
    KeyPath,
    NamePath,
    find_name_collisions,
    format_path,
    key_kind,
    key_value,
    name_path,
    storage_name,
)
from orbit_ckpt._src.type_handlers.base import SaveArgs, TypeHandler
from orbit_ckpt._src.type_handlers.capabilities import ValueChecker, capability
from orbit_ckpt._src.type_handlers.lazy import LazyArray
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry

_MAX_FILE_NAME = 255
_DOCUMENTS = "|".join(map(re.escape, (ZARR2_DOCUMENT, ZARR3_DOCUMENT)))
_ZARR3_FILES = re.compile(rf"c|{_DOCUMENTS}")
_ZARR2_FILES = re.compile(rf"[0-9]+(\.[0-9]+)*|{_DOCUMENTS}")
"""File names in the directory of an array: its chunks and its document."""

_MAX_DEPTH = 200
"""Rebuilding containers recurses; JSON decoders do too."""
_EMPTY_TYPESTRS: Mapping[type, str] = {dict: "Dict", list: "List", tuple: "Tuple"}


class PlannedLeaf(Struct, frozen=True, gc=False):
    """One leaf to write; a tuple, because there may be many.

    Attributes:
        path: Its path in the tree.
        names: The names of the path's keys.
        name: Storage name.
        value: The leaf.
        handler: Its type handler, None for empty containers.
        typestr: Its type as the checkpoint records it.
        args: Its options.
    """

    path: KeyPath
    names: NamePath
    name: str
    value: object
    handler: TypeHandler | None
    typestr: str
    args: SaveArgs


class SavePlan(Struct, frozen=True, dict=True):
    """All leaves of a tree, ready for their handlers.

    A plan has passed all checks; the rest is computed on demand.

    Attributes:
        flat: The flattened tree.
        handlers: The type handler of every leaf, None for empty containers.
        args: Options of the leaves that have any, by path.
        outline: The containers, if they are recorded by type.
    """

    flat: FlatTree
    handlers: Sequence[TypeHandler | None]
    args: Mapping[NamePath, SaveArgs]
    outline: Outline | None = None

    @functools.cached_property
    def leaves(self) -> Sequence[PlannedLeaf]:
        """The leaves in JAX's order."""
        rich_types = self.outline is not None
        leaves: list[PlannedLeaf] = []
        for path, names, value, handler in zip(
            self.flat.paths, self.flat.names, self.flat.values, self.handlers, strict=True
        ):
            typestr = handler.typestr() if handler else _empty_typestr(value, rich_types=rich_types)
            args = self.args.get(names) or _DEFAULT_ARGS
            name = storage_name(names)
            leaves.append(PlannedLeaf(path, names, name, value, handler, typestr, args))
        return leaves

    @property
    def key_kinds(self) -> dict[str, Sequence[KeyKind | None]]:
        """Kinds of keys that Orbax's metadata loses, by storage name."""
        kinds: dict[str, Sequence[KeyKind | None]] = {}
        for leaf in self.leaves:
            row = [key_kind(key) for key in leaf.path]
            if any(kind is not None for kind in row):
                kinds[leaf.name] = row
        return kinds

    @property
    def details(self) -> dict[str, LeafDetail]:
        """Types of empty namedtuples, by storage name."""
        return {
            leaf.name: LeafDetail(type=class_name(leaf.value))
            for leaf in self.leaves
            if leaf.handler is None and is_namedtuple(leaf.value)
        }

    def groups(self) -> list[tuple[TypeHandler, list[int]]]:
        """Return the positions of leaves with something to store, by handler."""
        groups: dict[int, tuple[TypeHandler, list[int]]] = {}
        for position, handler in enumerate(self.handlers):
            if handler is not None:
                groups.setdefault(id(handler), (handler, []))[1].append(position)
        return list(groups.values())

    def batches(self) -> list[tuple[TypeHandler, list[PlannedLeaf]]]:
        """Return the leaves with something to store, by handler."""
        leaves = self.leaves
        return [(handler, [leaves[i] for i in group]) for handler, group in self.groups()]

    def with_values(self, values: list[object]) -> SavePlan:
        """Return the same plan with other values for all leaves."""
        return SavePlan(self.flat.with_values(values), self.handlers, self.args, self.outline)


def plan_save(
    tree: object,
    registry: TypeHandlerRegistry,
    *,
    save_args: object = None,
    use_ocdbt: bool = True,
    use_zarr3: bool = True,
    rich_types: bool = False,
) -> SavePlan:
    """Plan the save of a tree.

    Args:
        tree: The tree.
        registry: Where type handlers are looked up.
        save_args: Tree of `SaveArgs` like `tree`; may lack leaves.
        use_ocdbt: Whether arrays go into a database, else names become directories.
        use_zarr3: Whether arrays are zarr3, else zarr2.
        rich_types: Whether containers are recorded by type.

    Raises:
        UnsupportedLeafError: Some leaves cannot be written; lists all of them.
        NameCollisionError: Two leaves would have one storage name, or a name cannot be stored.
        ValueError: The tree cannot be flattened, or `save_args` has leaves that it lacks.
    """
    flat = flatten(tree)
    _check_depth(flat.names)
    handlers = _find_handlers(flat, registry)
    files = _ZARR3_FILES if use_zarr3 else _ZARR2_FILES
    _check_names(flat, handlers, None if use_ocdbt else files)
    args = _align_save_args(save_args, flat.names)
    return SavePlan(flat, handlers, args, outline_of(tree) if rich_types else None)


_DEFAULT_ARGS = SaveArgs()


def _find_handlers(flat: FlatTree, registry: TypeHandlerRegistry) -> list[TypeHandler | None]:
    """Return every leaf's handler, None for empty containers; raise for all leaves without one."""
    handlers: list[TypeHandler | None] = []
    problems: dict[str, str] = {}
    has_unknown = False
    known: dict[type, tuple[TypeHandler | None, ValueChecker | None]] = {}
    for path, value in zip(flat.paths, flat.values, strict=True):
        if is_empty_node(value):
            handlers.append(None)
            continue
        kind = type(value)
        if kind not in known:
            found = registry.get(kind) if registry.has(kind) else None
            known[kind] = found, capability(found, ValueChecker)
        handler, checker = known[kind]
        handlers.append(handler)
        if value is PLACEHOLDER:
            problems[format_path(path)] = (
                "a PLACEHOLDER stands for no value; save the value, or leave the leaf out"
            )
        elif isinstance(value, Tracer):
            problems[format_path(path)] = "it is a tracer; save outside of jit, grad and vmap"
        elif handler is None and isinstance(value, jax.ShapeDtypeStruct):
            problems[format_path(path)] = "a ShapeDtypeStruct has no values; save the array"
        elif handler is None:
            has_unknown = True
            problems[format_path(path)] = (
                f"no type handler accepts {kind.__module__}.{kind.__qualname__}"
            )
        elif checker is not None and (reason := checker.check(value)):
            problems[format_path(path)] = reason
    if problems:
        lines = "\n".join(f"  {path}: {reason}" for path, reason in problems.items())
        raise UnsupportedLeafError(
            f"{len(problems)} of {len(flat.values)} leaves cannot be saved; nothing was written:\n"
            f"{lines}{_explain_types(registry) if has_unknown else ''}",
            paths=list(problems),
        )
    return handlers


def _explain_types(registry: TypeHandlerRegistry) -> str:
    """Return the sentences about leaf types without a handler."""
    types = registry.supported_types()
    shown = ", ".join(t.__name__ for t in types if not issubclass(t, LazyArray))
    return (
        f"\nRegistered are {shown}. Convert the leaves, leave them out, or register a handler with "
        "register_type_handler."
    )


def _check_depth(names: Sequence[NamePath]) -> None:
    deepest = max(names, key=len, default=())
    if len(deepest) > _MAX_DEPTH:
        where = format_path(deepest[:8])
        raise UnsupportedLeafError(
            f"{where}...: a leaf lies {len(deepest)} levels deep; at most {_MAX_DEPTH} can be "
            "rebuilt without a target. Flatten the tree there.",
            paths=[format_path(deepest)],
        )


def _check_names(
    flat: FlatTree,
    handlers: Sequence[TypeHandler | None],
    array_files: re.Pattern[str] | None,
) -> None:
    """Check that every leaf can be stored under its name.

    Args:
        flat: The leaves.
        handlers: Their handlers.
        array_files: File names in the directory of an array; None if arrays go into a database.

    Raises:
        NameCollisionError: One cannot.
    """
    names = flat.names
    collisions = find_name_collisions(names)
    if collisions:
        pairs = [(flat.paths[a], flat.paths[b]) for a, b in collisions]
        lines = "\n".join(f"  {_in_brackets(a)} and {_in_brackets(b)}" for a, b in pairs[:20])
        raise NameCollisionError(
            f"{len(pairs)} pairs of leaves would share a storage name, because key names are "
            f"joined with dots; one of each would be lost:\n{lines}\nRename a key of each pair.",
            paths=[format_path(path) for pair in pairs for path in pair],
        )
    stored = [storage_name(path) for path in names]
    folders = {
        name for name, handler in zip(stored, handlers, strict=True) if array_files and handler
    }
    for path, name in zip(names, stored, strict=True):
        reason = _bad_name(name, is_directory=name in folders)
        if reason is None and array_files is not None and name in folders:
            reason = _taken_by(name, folders, array_files)
        if reason:
            raise NameCollisionError(
                f"{format_path(path)}: cannot be stored under its name: {reason}. Rename the key"
                + (" or save with use_ocdbt=True." if array_files else "."),
                paths=[format_path(path)],
            )


def _in_brackets(path: KeyPath) -> str:
    """Format a path as subscripts, which distinguish `a.b` from `b` in `a`."""
    return "".join(f"[{key_value(key)!r}]" for key in path)


def _bad_name(name: str, *, is_directory: bool) -> str | None:
    """Return why a storage name cannot be used, None if it can."""
    if not is_directory and name.isascii():
        return None
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if not is_directory or not name:
        return None
    parts = name.split("/")
    reasons = {
        f"{parts[0]!r} is the name of a file of the checkpoint": (
            parts[0] in RESERVED or is_process_directory(parts[0])
        ),
        "TensorStore takes a backslash in a file name for a slash": "\\" in name,
        "it is not the name of a directory": (
            any(part in ("", ".", "..") for part in parts) or b"\0" in encoded
        ),
        "it is too long for a file name": (
            any(len(part.encode()) > _MAX_FILE_NAME for part in parts)
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _taken_by(name: str, folders: Collection[str], array_files: re.Pattern[str]) -> str | None:
    """Return a leaf with a file where another leaf's directory would be, None without one.

    A leaf called "" has its files in the directory of all leaves.
    """
    parts = name.split("/")
    for depth, part in enumerate(parts):
        outer = "/".join(parts[:depth])
        if outer != name and outer in folders and array_files.fullmatch(part):
            owner = outer or '""'
            return f"{part!r} may be the name of a file in the directory of the leaf {owner}"
    return None


def _align_save_args(save_args: object, names: Sequence[NamePath]) -> dict[NamePath, SaveArgs]:
    """Return copies of the options of leaves, by path; the caller may change its own."""
    if save_args is None:
        return {}
    flat = flatten(save_args)
    aligned: dict[NamePath, SaveArgs] = {}
    known = set(names)
    copies: dict[int, SaveArgs] = {}  # many leaves share one
    for path, value in zip(flat.paths, flat.values, strict=True):
        if is_empty_node(value):
            continue
        where = format_path(path)
        if not hasattr(value, "chunk_byte_size"):
            raise ValueError(
                f"save_args: {where}: expected SaveArgs, found {show(value)}. Give a tree like the "
                "one that is saved, with SaveArgs for leaves."
            )
        if name_path(path) not in known:
            raise ValueError(
                f"save_args: {where}: the tree has no such leaf. Give SaveArgs for leaves "
                "of the tree, as in jax.tree.map(lambda _: SaveArgs(), tree)."
            )
        args = copies.get(id(value))
        if args is None:
            args = replace(value) if isinstance(value, SaveArgs) else _convert_args(value)
            copies[id(value)] = args
        if args.dtype is not None and not storable(as_dtype(args.dtype)):
            raise ValueError(
                f"save_args: {where}: dtype {args.dtype} cannot be stored. Give a dtype of numbers."
            )
        aligned[name_path(path)] = args
    return aligned


def _convert_args(value: object) -> SaveArgs:
    """Convert another library's `SaveArgs` with the same fields to ours."""
    dtype = getattr(value, "dtype", None)
    axes = tuple(getattr(value, "shard_axes", ()))
    return SaveArgs(False, dtype, getattr(value, "chunk_byte_size", None), axes)


def _empty_typestr(value: object, *, rich_types: bool) -> str:
    if rich_types and is_namedtuple(value):
        return "NamedTuple"
    return _EMPTY_TYPESTRS.get(type(value), "None")
