"""Templates that saved trees must match, and initial states of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax

from orbit_ckpt._src.checkpointer.load_options import shardings_by_patterns
from orbit_ckpt._src.errors import TransformError, TreeMismatchError
from orbit_ckpt._src.items.arguments import is_args
from orbit_ckpt._src.items.composite import Composite
from orbit_ckpt._src.metadata.values import TreeMetadata
from orbit_ckpt._src.pytree.restore.patterns import match_patterns
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.transform.patterns import PatternMap, join_name
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import NamePath, format_path

T = TypeVar("T")
Placement = jax.sharding.Sharding | jax.Device | PatternMap[jax.sharding.Sharding] | None
_PYTHON_NUMBERS: Mapping[type, str] = {bool: "b", int: "iu", float: "f", complex: "c"}


def check_template(template: object, given: object) -> None:
    """Check that the tree to save has the leaves, shapes and dtypes of a template.

    Args:
        template: A tree, or a `Composite` of trees by item; None passes.
        given: A tree, trees by item, or the arguments of a save. Items without a template, and
            arguments without a tree, pass.

    Raises:
        TreeMismatchError: They differ; lists all leaves that do.
    """
    if template is None:
        return
    if isinstance(template, Composite):
        items: Mapping[str, object] = cast(Any, given) if isinstance(given, Mapping) else {}
        pairs = [(name, tree, items[name]) for name, tree in template.items() if name in items]
    else:
        pairs = [("", template, given)]
    problems: list[str] = []
    paths: list[str] = []
    for item, tree, value in pairs:
        if is_args(value) and not hasattr(value, "item"):
            continue
        found = getattr(value, "item") if is_args(value) else value  # noqa: B009 - of any arguments
        where = f"item {item!r}, " if item else ""
        for what, leaves in _differences(tree, found).items():
            problems.append(f"  {where}{what}: {shorten_list(leaves)}")
            paths += [leaf.partition(": ")[0] for leaf in leaves]
    if problems:
        raise TreeMismatchError(
            "The tree differs from the template of the manager:\n" + "\n".join(problems) + "\nSave "
            "a tree like it, or open the manager with another template.",
            paths=paths,
        )


def _differences(template: object, tree: object) -> Mapping[str, list[str]]:
    wanted, found = _leaves(template), _leaves(tree)
    both = [names for names in wanted if names in found]
    changed = [
        f"{format_path(names)}: {_describe(found[names])}, not {_describe(wanted[names])}"
        for names in both
        if not _is_like(found[names], wanted[names])
    ]
    differing = {
        "missing": [format_path(names) for names in wanted if names not in found],
        "not in the template": [format_path(names) for names in found if names not in wanted],
        "different": changed,
    }
    return {what: leaves for what, leaves in differing.items() if leaves}


def _leaves(tree: object) -> dict[NamePath, object]:
    flat = flatten(tree.tree if isinstance(tree, TreeMetadata) else tree)
    return dict(zip(flat.names, flat.values, strict=True))


def _is_like(leaf: object, wanted: object) -> bool:
    if _describe(leaf) == _describe(wanted):
        return True
    kinds = _PYTHON_NUMBERS.get(type(leaf), "")  # a number fits an array without dimensions
    shape, dtype = getattr(wanted, "shape", None), getattr(wanted, "dtype", None)
    return shape == () and getattr(dtype, "kind", None) in {*kinds}


def _describe(leaf: object) -> str:
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        return type(leaf).__name__
    return f"{dtype}{list(shape)}"


def initialize(init: Callable[[], T], sharding: Placement) -> T:
    """Compute a tree of arrays with shardings.

    Args:
        init: Returns the tree; it is compiled.
        sharding: Shardings as for `load`, None to leave them to the compiler.

    Raises:
        TransformError: No pattern matches an array.
    """
    if sharding is None:
        return _compiled(init)()
    flat = flatten(abstract_of(init))
    arrays = [names for names in flat.names if names not in flat.empty_names]
    found, _ = match_patterns(shardings_by_patterns(sharding), arrays)
    missing = [join_name(names) for names in arrays if names not in found]
    if missing:
        raise TransformError(
            f"sharding: no pattern matches {len(missing)} arrays: {shorten_list(missing)}. Add one "
            'that does; "**" matches all.'
        )
    pairs = zip(flat.names, flat.values, strict=True)
    shardings = flat.unflatten([found.get(names, value) for names, value in pairs])
    return _compiled(init, out_shardings=shardings)()


abstract_of = cast(Callable[[Callable[[], object]], object], jax.eval_shape)
"""Returns the structure, shapes and dtypes of a function's result."""

_compiled = cast(Callable[..., Callable[[], Any]], jax.jit)
