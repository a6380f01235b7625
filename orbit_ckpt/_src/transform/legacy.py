r"""Orbax's transforms, with Orbax's semantics.

A tree of transforms defines leaves of the result. Its keys, joined by slashes, are regular
expressions that match whole leaf names. It is visited in JAX's flattening order, which sorts the
keys of every dict; the last transform that matches a leaf counts. Leaves that no transform matches
come from the checkpoint or the target, depending on `default_to_original`.

Use `transform.rules` in new code: rules are applied in the order written and must match.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, cast

import jax
from msgspec import Struct

from orbit_ckpt._src.errors import TransformError
from orbit_ckpt._src.runtime.checks import as_flag
from orbit_ckpt._src.transform.nodes import Apply, FromTarget, Node, Read
from orbit_ckpt._src.transform.patterns import join_name, names_by_text
from orbit_ckpt._src.tree.build import build_tree
from orbit_ckpt._src.tree.diff import nearest_names
from orbit_ckpt._src.tree.flatten import flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import KeyPath, NamePath

_RESTORE_ONLY = "Must use RestoreTransform in order to use multi_value_fn during restore."
_NO_INPUTS = (
    "`multi_value_fn` was specified, but `multi_value_fn_input_args` were not. The latter must be "
    "specified to identify inputs for the function."
)
_TWO = 2


@dataclass
class Transform:
    r"""How to make a leaf from an original tree.

    `{r"block_(\d+)/(.*)": Transform(original_key=r"layer_\1/\2")}` renames.

    Attributes:
        original_key: Name of the leaf in the original tree, with references such as `\1` to groups
            of the transform's key; a tuple of keys is joined by slashes. None for the same name.
        use_fallback: Whether to use the target's leaf even if the original tree has it; with
            `default_to_original=False` the original tree's.
        value_fn: Maps the value to the new one.
        multi_value_fn: Maps the leaf's name and the original tree to the value.
    """

    original_key: str | tuple[str, ...] | None = None
    use_fallback: bool = False
    value_fn: Callable[..., Any] | None = None
    multi_value_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        given = self._given()
        for one, *others in _EXCLUSIVE:
            clash = [other for other in others if one in given and other in given]
            if clash:
                raise ValueError(
                    f"{type(self).__name__}: {one} and {clash[0]} exclude each other; give one."
                )

    def _given(self) -> set[str]:
        values = vars(self)
        return {name for name, value in values.items() if value is not None and value is not False}


_EXCLUSIVE = (
    ("original_key", "use_fallback", "multi_value_fn", "multi_value_fn_input_args"),
    ("use_fallback", "value_fn", "multi_value_fn", "multi_value_fn_input_args"),
    ("value_fn", "multi_value_fn", "multi_value_fn_input_args"),
)


@dataclass
class RestoreTransform(Transform):
    """How to make a leaf while restoring a checkpoint.

    Attributes:
        value_fn: Maps the value, and the leaf's `RestoreArgs` if it requires two arguments, to the
            new value.
        multi_value_fn: Maps the leaf's name, a tree of the stored leaves, and the leaf's
            `RestoreArgs` to the value.
        multi_value_fn_input_args: `RestoreArgs` of the stored leaves that `multi_value_fn` uses, by
            regular expressions for their names. The first match counts.
    """

    multi_value_fn_input_args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.multi_value_fn_input_args is not None and self.multi_value_fn is None:
            raise ValueError(
                "RestoreTransform: multi_value_fn_input_args are the inputs of multi_value_fn, "
                "which was not given."
            )


class LegacyRules(Struct, frozen=True):
    """The transforms of a restore.

    Attributes:
        transforms: Tree of transforms.
        default_to_original: Whether leaves that no transform matches come from the checkpoint if it
            has them, otherwise from the target.
    """

    transforms: object
    default_to_original: bool = True


class Original(Struct, frozen=True):
    """The leaves of a checkpoint.

    Attributes:
        paths: Their paths, by names.
        empty: The empty containers and their paths.
    """

    paths: Mapping[NamePath, KeyPath]
    empty: Sequence[tuple[KeyPath, object]] = ()


class Undeclared:
    """Placeholder for a stored leaf not declared as an input; any use is an error."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def error(self) -> TransformError:
        """Return the error that a use raises."""
        return TransformError(
            f"{self._name}: multi_value_fn uses this leaf, which was not read because "
            "multi_value_fn_input_args does not name it. Add it there with its RestoreArgs."
        )

    def __repr__(self) -> str:
        return f"<{self._name}, not declared as an input>"

    def __getattr__(self, name: str) -> NoReturn:
        raise self.error()

    def _fail(self, *_: object, **__: object) -> NoReturn:
        raise self.error()

    # operators are looked up on the class, where `__getattr__` does not see them
    __array__ = __bool__ = __int__ = __float__ = __complex__ = __index__ = _fail
    __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _fail
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _fail
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _fail
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __neg__ = __pos__ = __abs__ = _fail
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _fail
    __lt__ = __le__ = __gt__ = __ge__ = _fail


class _Choice(Struct, frozen=True):
    """The source of one leaf.

    Attributes:
        source: Name of the leaf in the original tree, None if a function receives the whole tree.
        transform: The transform to apply, if any.
    """

    source: str | None
    transform: Transform | None = None


def compile_legacy(
    rules: LegacyRules,
    target: Iterable[NamePath],
    original: Original,
    args: Mapping[NamePath, object],
    default_args: object,
) -> dict[NamePath, Node]:
    """Return how to make each leaf of a target from a checkpoint.

    Args:
        rules: The transforms.
        target: The leaves of the target, without empty containers.
        original: The leaves of the checkpoint.
        args: Restore arguments of leaves, by their names in the target.
        default_args: Restore arguments of leaves that `args` lacks.

    Raises:
        TransformError: The transforms do not fit the checkpoint.
        TypeError: The tree of transforms holds something else.
    """
    transforms = _flatten_transforms(rules.transforms)
    for key, transform in transforms.items():
        if transform.multi_value_fn is None:
            continue
        if not isinstance(transform, RestoreTransform):
            raise TransformError(f"{_RESTORE_ONLY} (transform {key!r})")
        if transform.multi_value_fn_input_args is None:
            raise TransformError(f"{_NO_INPUTS} (transform {key!r})")
    by_name = names_by_text(original.paths, "transforms")
    trees: dict[int, Apply] = {}
    """The inputs of each `multi_value_fn`, which are the same for all leaves that it makes."""
    nodes: dict[NamePath, Node] = {}
    for names in target:
        name = join_name(names)
        choice = _choose(name, transforms, by_name, rules.default_to_original)
        wanted = args.get(names, default_args)
        if choice is None:
            nodes[names] = FromTarget()
        elif choice.source is not None:
            nodes[names] = _of_one(by_name[choice.source], choice.transform, wanted)
        else:
            transform = cast(RestoreTransform, choice.transform)
            tree = trees.get(id(transform))
            if tree is None:
                tree = trees[id(transform)] = _inputs(transform, original, default_args)
            call = partial(_call, transform, name, wanted)
            nodes[names] = Apply("multi_value_fn", call, (tree,))
    return nodes


def apply_transformations(
    original_tree: object,
    transformations: object,
    new_tree: object,
    default_to_original: bool = True,
) -> Any:  # a tree of any type
    """Apply transforms to the values of a tree.

    Args:
        original_tree: The tree.
        transformations: Tree of transforms.
        new_tree: Tree that gives the structure of the result.
        default_to_original: Whether leaves that no transform matches come from `original_tree` if
            it has them, otherwise from `new_tree`.

    Raises:
        TransformError: The transforms do not fit the original tree.
        TypeError: The tree of transforms holds something else.

    Example:
        >>> old, new = {"a": 1, "b": {"c": 2}}, {"x": 0, "a": 0}
        >>> apply_transformations(old, {"x": Transform(original_key="b/c")}, new)
        {'a': 1, 'x': 2}
    """
    default_to_original = as_flag("default_to_original", default_to_original)
    original, new = flatten(original_tree), flatten(new_tree)
    if is_empty_node(new_tree):
        return {}
    values = {
        join_name(names): value
        for names, value in zip(original.names, original.values, strict=True)
        if not is_empty_node(value)
    }
    transforms = _flatten_transforms(transformations)
    result: list[object] = []
    for names, value in zip(new.names, new.values, strict=True):
        name = join_name(names)
        choice = (
            None if is_empty_node(value) else _choose(name, transforms, values, default_to_original)
        )
        if choice is None:
            result.append(value)
        elif choice.source is None:
            fn = cast(Transform, choice.transform).multi_value_fn
            result.append(cast(Callable[..., object], fn)(name, original_tree))
        else:
            fn = None if choice.transform is None else choice.transform.value_fn
            found = values[choice.source]
            result.append(found if fn is None else fn(found))
    return new.unflatten(result)


def _flatten_transforms(tree: object) -> dict[str, Transform]:
    """Return transforms by their keys, in the order of application."""
    flat = flatten(tree)
    transforms: dict[str, Transform] = {}
    for names, value in zip(flat.names, flat.values, strict=True):
        key = join_name(names)
        if isinstance(value, Transform):
            transforms[key] = value
        elif not is_empty_node(value):
            raise TypeError(
                f"transforms: {key!r} is {value!r}, expected a Transform or RestoreTransform; "
                "rules (transform.rules) go to load(transforms=)."
            )
    return transforms


def _choose(
    name: str, transforms: Mapping[str, Transform], original: Mapping[str, object], default: bool
) -> _Choice | None:
    """Return the source of a leaf, None for the target's own leaf."""
    chosen: _Choice | None = None
    is_matched = False
    for pattern, transform in transforms.items():
        match = _match(pattern, name)
        if match is None:
            continue
        is_matched = True
        if transform.use_fallback:
            if not default and name not in original:
                raise TransformError(
                    f"{name} not found in origin tree (`use_fallback` requested)."
                    f"{_near(name, original)}"
                )
            # otherwise an earlier transform may have chosen already, as in Orbax
            chosen = chosen if default else _Choice(name)
        elif transform.multi_value_fn is not None:
            chosen = _Choice(None, transform)
        else:
            source = _expand(pattern, match, transform.original_key)
            if source not in original:
                raise TransformError(
                    f'Transformation key "{source}" not found in origin tree.'
                    f"{_near(source, original)}"
                )
            chosen = _Choice(source, transform)
    if not is_matched and default and name in original:
        return _Choice(name)
    return chosen


def _match(pattern: str, name: str) -> re.Match[str] | None:
    try:
        return re.fullmatch(pattern, name)
    except re.error as error:
        raise TransformError(
            f"transforms: {pattern!r} is no regular expression: {error}. Put a backslash before "
            "each special character of a name."
        ) from error


def _expand(pattern: str, match: re.Match[str], key: str | tuple[str, ...] | None) -> str:
    if key is None:
        return match.string
    template = key if isinstance(key, str) else "/".join(map(str, key))
    try:
        return match.expand(template)
    except (re.error, IndexError) as error:
        raise TransformError(
            f"Transform {pattern!r}: original_key {template!r} does not fit: {error}. It may refer "
            f"to the {match.re.groups} groups of the key."
        ) from error


def _near(name: str, original: Mapping[str, object]) -> str:
    """Return advice for a name that does not exist."""
    if any(other.startswith(f"{name}/") for other in original):
        return f" It is a container; rename all below it: {{'new/(.*)': {name}/\\1}}."
    near = nearest_names(name, list(original))
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _of_one(source: NamePath, transform: Transform | None, args: object) -> Node:
    """Return the node for one stored leaf."""
    read = Read(source, args=args)
    fn = None if transform is None else transform.value_fn
    if fn is None:
        return read
    if isinstance(transform, RestoreTransform) and _needs_two(fn):
        return Apply("value_fn", partial(_call_with_args, fn, args), (read,))
    return Apply("value_fn", fn, (read,))


def _needs_two(fn: Callable[..., object]) -> bool:
    """Return whether a function requires two arguments; optional ones do not count."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # built-in functions may have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return len(needed) == _TWO


def _call_with_args(fn: Callable[..., object], args: object, value: object) -> object:
    return fn(value, args)


def _inputs(transform: RestoreTransform, original: Original, default_args: object) -> Apply:
    """Return the tree passed to a `multi_value_fn`."""
    declared = transform.multi_value_fn_input_args or {}
    reads: list[Read] = []
    for names in original.paths:
        name = join_name(names)
        pattern = next((pattern for pattern in declared if _match(pattern, name)), None)
        if pattern is not None:
            args = declared[pattern]
            reads.append(Read(names, args=default_args if args is None else args))
    build = partial(_build, original, [read.names for read in reads])
    return Apply("multi_value_fn", build, tuple(reads))


def _build(original: Original, declared: Sequence[NamePath], *values: object) -> object:
    """Return the stored tree with the values of declared leaves."""
    found = dict(zip(declared, values, strict=True))
    leaves = [
        (path, found[names] if names in found else Undeclared(join_name(names)))
        for names, path in original.paths.items()
    ]
    return build_tree([*leaves, *original.empty])


def _call(transform: RestoreTransform, name: str, args: object, tree: object) -> object:
    try:
        value = cast(Callable[..., object], transform.multi_value_fn)(name, tree, args)
    except TransformError as error:
        error.add_note(f"This happened while {name} was computed.")
        raise
    for leaf in jax.tree_util.tree_leaves(value):
        if type(leaf) is Undeclared:
            raise leaf.error()
    return value
