"""Plan the content of a save before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import TypeVar, cast

import jax
from jax.core import Tracer
from msgspec import Struct, field, structs

from orbit_ckpt._src.errors import UnsupportedLeafError
from orbit_ckpt._src.metadata.outline import Outline, outline_of
from orbit_ckpt._src.metadata.rich_types import class_name
from orbit_ckpt._src.metadata.schema import LeafDetail
from orbit_ckpt._src.pytree.save.names import check_depth, check_names
from orbit_ckpt._src.tree.build import PLACEHOLDER
from orbit_ckpt._src.tree.flatten import FlatTree
from orbit_ckpt._src.tree.keypath import (
    KeyKind,
    KeyPath,
    NamePath,
    format_path,
    key_kind,
)
from orbit_ckpt._src.type_handlers.base import SaveArgs, TypeHandler
from orbit_ckpt._src.type_handlers.capabilities import (
    ArrayForm,
    FormHandler,
    ValueChecker,
    capability,
)
from orbit_ckpt._src.type_handlers.lazy import LazyArray
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry

T = TypeVar("T")

_EMPTY_TYPESTRS: Mapping[type, str] = {dict: "Dict", list: "List", tuple: "Tuple"}


class PlannedLeaf(Struct, frozen=True, gc=False):
    """One leaf to write by its handler.

    Attributes:
        position: Its place in the order of the tree's leaves.
        path: Its path in the tree.
        name: Storage name.
        value: The leaf.
        args: Its options.
    """

    position: int
    path: KeyPath
    name: str
    value: object
    args: SaveArgs


class LeavesOfClass(Struct, frozen=True):
    """The leaves of one class.

    Attributes:
        kind: The class.
        handler: Their type handler.
        positions: Their places in the order of the tree's leaves.
        forms: The form of each; empty if the handler has no forms.
    """

    kind: type
    handler: TypeHandler
    positions: Sequence[int]
    forms: Sequence[Hashable]

    @property
    def former(self) -> FormHandler | None:
        """The handler as one that has forms."""
        return capability(self.handler, FormHandler)

    def problems(self, values: Sequence[object], *, is_known: bool = False) -> dict[int, str]:
        """Return why values of the class cannot be written, by position among them.

        Args:
            values: The values.
            is_known: Whether values of the same forms have been checked before.
        """
        checker, former = capability(self.handler, ValueChecker), self.former
        if checker is None:
            return {}
        if former is None:
            reasons = map(checker.check, values)
            return {i: reason for i, reason in enumerate(reasons) if reason}
        bad = dict(former.unusable(values))
        if is_known:
            return bad
        usable = {form: values[i] for i, form in enumerate(self.forms) if i not in bad}
        why = {form: checker.check(value) for form, value in usable.items()}
        if any(why.values()):
            reasons = (bad.get(i) or why.get(form) for i, form in enumerate(self.forms))
            return {i: reason for i, reason in enumerate(reasons) if reason}
        return bad


class LeafGroup(Struct, frozen=True):
    """Leaves of one handler that are stored alike.

    Attributes:
        handler: Their type handler.
        args: Their options.
        form: How each is stored as a small array, None if the handler decides leaf by leaf.
        positions: Their places in the order of the tree's leaves.
    """

    handler: TypeHandler
    args: SaveArgs
    form: ArrayForm | None
    positions: list[int]


class SavePlan(Struct, frozen=True, dict=True):
    """All leaves of a tree, ready for their handlers; a plan has passed all checks.

    Attributes:
        flat: The flattened tree.
        args: Options of the leaves that have any, by path.
        classes: The leaves with something to store, by class.
        groups: The same leaves, by what they have in common.
        typestrs: The types of the leaves as the checkpoint records them.
        empty: The positions of empty containers, and their classes; None is one.
        outline: The containers, if they are recorded by type.
        results: What `derive` has computed, by name.
    """

    flat: FlatTree
    args: Mapping[NamePath, SaveArgs]
    classes: Sequence[LeavesOfClass]
    groups: Sequence[LeafGroup]
    typestrs: Sequence[str]
    empty: Mapping[int, type]
    outline: Outline | None = None
    results: dict[str, tuple[object, object]] = field(
        default_factory=dict[str, tuple[object, object]]
    )

    @property
    def names(self) -> Sequence[str]:
        """The storage names of the leaves."""
        return self.flat.places.storage_names

    def derive(self, name: str, given: object, compute: Callable[[], T]) -> T:
        """Return what follows from the plan and a value; computed again if that has changed.

        Args:
            name: What it is.
            given: The value, which must not change afterwards.
            compute: Computes it.
        """
        known = self.results.get(name)
        if known is None or known[0] != given:
            known = self.results[name] = given, compute()
        return cast(T, known[1])

    @property
    def handlers(self) -> list[TypeHandler]:
        """The type handlers of the leaves, each once."""
        return list({id(group.handler): group.handler for group in self.groups}.values())

    @property
    def key_kinds(self) -> dict[str, Sequence[KeyKind | None]]:
        """Kinds of keys that Orbax's metadata loses, by storage name."""
        if self.flat.places.has_only_names:
            return {}
        kinds: dict[str, Sequence[KeyKind | None]] = {}
        for name, path in zip(self.names, self.flat.paths, strict=True):
            row = [key_kind(key) for key in path]
            if any(row):
                kinds[name] = row
        return kinds

    @property
    def details(self) -> dict[str, LeafDetail]:
        """Types of empty namedtuples, by storage name."""
        return {
            self.names[position]: LeafDetail(type=class_name(kind))
            for position, kind in self.empty.items()
            if _is_namedtuple(kind)
        }

    def leaf(self, position: int, args: SaveArgs) -> PlannedLeaf:
        """Return the leaf at a position."""
        flat = self.flat
        name, value = self.names[position], flat.values[position]
        return PlannedLeaf(position, flat.paths[position], name, value, args)

    def batches(self) -> list[tuple[TypeHandler, list[PlannedLeaf]]]:
        """Return the leaves that their handlers write, by handler, in the order of the tree."""
        batches: dict[int, tuple[TypeHandler, list[PlannedLeaf]]] = {}
        for group in self.groups:
            if group.form is None:
                leaves = batches.setdefault(id(group.handler), (group.handler, []))[1]
                leaves += [self.leaf(position, group.args) for position in group.positions]
        for _, leaves in batches.values():
            leaves.sort(key=_position)
        return list(batches.values())

    def without_forms(self, handlers: Collection[object]) -> SavePlan:
        """Return the plan with all leaves of some handlers left to these."""
        groups = [
            structs.replace(group, form=None) if group.handler in handlers else group
            for group in self.groups
        ]
        return structs.replace(self, groups=groups)

    def with_values(self, values: list[object]) -> SavePlan:
        """Return the same plan with other values for all leaves."""
        return structs.replace(self, flat=self.flat.with_values(values))


def plan_save(
    tree: object,
    flat: FlatTree,
    registry: TypeHandlerRegistry,
    *,
    args: Mapping[NamePath, SaveArgs] = {},
    use_ocdbt: bool = True,
    use_zarr3: bool = True,
    rich_types: bool = False,
) -> SavePlan:
    """Plan the save of a tree.

    Args:
        tree: The tree.
        flat: The same, flattened.
        registry: Where type handlers are looked up.
        args: Options of the leaves that have any.
        use_ocdbt: Whether arrays go into a database, else names become directories.
        use_zarr3: Whether arrays are zarr3, else zarr2.
        rich_types: Whether containers are recorded by type.

    Raises:
        UnsupportedLeafError: Some leaves cannot be written; lists all of them.
        NameCollisionError: Two leaves would have one storage name, or a name cannot be stored.
    """
    check_depth(flat.names)
    classes = _find_handlers(flat, registry)
    check_names(flat, use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    return SavePlan(
        flat,
        args,
        classes,
        _group(flat, classes, args),
        _typestrs(flat, classes, rich_types=rich_types),
        empty_classes(flat),
        outline_of(tree, flat) if rich_types else None,
    )


_SMALL = 1 << 13
"""Arrays of at most this many elements are planned by form."""

_DEFAULT_ARGS = SaveArgs()
_position = attrgetter("position")


def _find_handlers(flat: FlatTree, registry: TypeHandlerRegistry) -> list[LeavesOfClass]:
    """Return the leaves with something to store by class; raise for all that cannot be stored."""
    empty = flat.empty_positions
    by_type: dict[type, list[int]] = {}
    for position, value in enumerate(flat.values):
        if not empty or position not in empty:
            by_type.setdefault(type(value), []).append(position)
    found: list[LeavesOfClass] = []
    problems: dict[int, str] = {}
    has_unknown = False
    for kind, positions in by_type.items():
        values = [flat.values[position] for position in positions]
        handler = registry.get(kind) if registry.has(kind) else None
        reason = _why_not(values[0], handler)
        if handler is None or reason is not None:
            has_unknown = has_unknown or reason is None
            reason = reason or f"no type handler accepts {kind.__module__}.{kind.__qualname__}"
            problems.update(dict.fromkeys(positions, reason))
            continue
        former = capability(handler, FormHandler)
        forms = () if former is None else _shared(former.forms(values))
        leaves = LeavesOfClass(kind, handler, positions, forms)
        problems.update((positions[i], reason) for i, reason in leaves.problems(values).items())
        found.append(leaves)
    if problems:
        at = {format_path(flat.paths[i]): problems[i] for i in sorted(problems)}
        lines = "\n".join(f"  {path}: {reason}" for path, reason in at.items())
        raise UnsupportedLeafError(
            f"{len(problems)} of {len(flat.values)} leaves cannot be saved; nothing was written:\n"
            f"{lines}{_explain_types(registry) if has_unknown else ''}",
            paths=list(at),
        )
    return found


def _why_not(value: object, handler: TypeHandler | None) -> str | None:
    """Return why no value of the class of this one can be saved, None if one may be."""
    if value is PLACEHOLDER:
        return "a PLACEHOLDER stands for no value; save the value, or leave the leaf out"
    if isinstance(value, Tracer):
        return "it is a tracer; save outside of jit, grad and vmap"
    if handler is None and isinstance(value, jax.ShapeDtypeStruct):
        return "a ShapeDtypeStruct has no values; save the array"
    return None


def _shared(forms: Sequence[Hashable]) -> list[Hashable]:
    """Return the forms with one object for all that are equal."""
    known: dict[Hashable, Hashable] = {}
    return [known.setdefault(form, form) for form in forms]


def _small_form(former: FormHandler, value: object) -> ArrayForm | None:
    """Return how a value is stored; None if it is large, and worth the work of its handler."""
    form = former.array_form(value)
    return form if form is not None and math.prod(form.shape) <= _SMALL else None


def _group(
    flat: FlatTree, found: Sequence[LeavesOfClass], args: Mapping[NamePath, SaveArgs]
) -> list[LeafGroup]:
    """Return the leaves that are stored alike."""
    groups: dict[tuple[int, int, int], LeafGroup] = {}
    arg = _DEFAULT_ARGS
    for leaves in found:
        of_class, former = id(leaves), leaves.former
        for position, form in zip(leaves.positions, leaves.forms or repeat(None), strict=False):
            if args:
                arg = args.get(flat.names[position], _DEFAULT_ARGS)
            key = (of_class, id(form), id(arg))  # equal forms are one object
            group = groups.get(key)
            if group is None:
                value = flat.values[position]
                array = None if former is None else _small_form(former, value)
                group = groups[key] = LeafGroup(leaves.handler, arg, array, [])
            group.positions.append(position)
    return list(groups.values())


def _typestrs(flat: FlatTree, found: Sequence[LeavesOfClass], *, rich_types: bool) -> list[str]:
    """Return what the checkpoint records as the type of every leaf."""
    typestrs = [""] * len(flat.values)
    for leaves in found:
        typestr = leaves.handler.typestr()
        for position in leaves.positions:
            typestrs[position] = typestr
    for position, kind in empty_classes(flat).items():
        is_named = rich_types and _is_namedtuple(kind)
        typestrs[position] = "NamedTuple" if is_named else _EMPTY_TYPESTRS.get(kind, "None")
    return typestrs


def _is_namedtuple(kind: type) -> bool:
    return hasattr(kind, "_fields") and tuple in kind.__mro__


def empty_classes(flat: FlatTree) -> dict[int, type]:
    """Return the classes of the empty containers of a tree, in order; None is one."""
    return {position: type(flat.values[position]) for position in sorted(flat.empty_positions)}


def _explain_types(registry: TypeHandlerRegistry) -> str:
    """Return the sentences about leaf types without a handler."""
    types = registry.supported_types()
    shown = ", ".join(t.__name__ for t in types if not issubclass(t, LazyArray))
    return (
        f"\nRegistered are {shown}. Convert the leaves, leave them out, or register a handler with "
        "register_type_handler."
    )
