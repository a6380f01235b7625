"""Random rules on random trees do what they do when applied to values one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.transform.engine import apply_rules
from orbit_ckpt._src.transform.nodes import ArrayInfo, sources_of
from orbit_ckpt._src.tree.build import PLACEHOLDER
from orbit_ckpt._src.tree.flatten import flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import storage_name
from orbit_ckpt.errors import (
    CorruptionError,
    TransformError,
    TreeMismatchError,
)
from orbit_ckpt.transform import Rule
from tests.support import assert_same_leaf, checkpointer, scratch
from tests.transform.reference import Leaf, Refused, is_array
from tests.transform.strategies import (
    Flat,
    Pattern,
    applied,
    by_name,
    choices,
    is_above,
    is_chosen,
    leaves,
    rule_lists,
    saved_trees,
    targets,
    trees_without_lists,
)

REFUSED = frozenset({TransformError})
Outcome = dict[str, Any] | frozenset[type[Exception]]
"""Values by name, or which errors there may be."""


def outcome(found: Mapping[str, Leaf], names: Sequence[str]) -> Outcome:
    """Return what a load of these leaves comes to."""
    failures = {leaf.failure for name in names if (leaf := found[name]).failure}
    return frozenset(failures) or {name: found[name].result for name in names}


def is_stored_empty(leaf: Leaf) -> bool:
    return leaf.is_stored and is_empty_node(leaf.value)


def without_target(found: Mapping[str, Leaf], names: Sequence[str]) -> Outcome:
    """Return what a load of these leaves without a target comes to."""
    if any(is_above(name, names) for name in names if not is_stored_empty(found[name])):
        return REFUSED  # something is a leaf and a container
    shown = [n for n in names if not (is_stored_empty(found[n]) and is_above(n, names))]
    return outcome(found, shown) or {"": {}}


def draw_applied(data: st.DataObject, saved: Flat) -> tuple[list[Rule], dict[str, Leaf] | None]:
    """Return rules, and what they make of a tree without a target; None if they are refused."""
    chosen = data.draw(rule_lists(saved, None))
    try:
        return chosen, applied(chosen, saved.named, None)
    except Refused:
        return chosen, None


def check(path: Path, wanted: Outcome, **options: Any) -> None:
    """Check what a load comes to."""
    if isinstance(wanted, frozenset):
        event(f"refused: {sorted(error.__name__ for error in wanted)}")
        with pytest.raises(tuple(wanted)):
            ocp.load(path, **options)
        return
    found = by_name(ocp.load(path, **options))
    if "like" not in options:  # elements that a list lacks
        found = {n: v for n, v in found.items() if v is not PLACEHOLDER or n in wanted}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if is_empty_node(value) or value is PLACEHOLDER:
            assert found[name] == value
        else:
            assert_same_leaf(found[name], value, name)
    hosts = [value for value in found.values() if isinstance(value, np.ndarray)]
    assert all(host.flags.writeable for host in hosts)
    assert not any(np.may_share_memory(one, other) for one, other in combinations(hosts, 2))


@given(st.data(), saved_trees())
def test_rules_do_what_they_do_to_values(data: st.DataObject, saved: Flat) -> None:
    chosen, found = draw_applied(data, saved)
    wanted = REFUSED if found is None else without_target(found, list(found))
    with scratch() as path:
        ocp.save(path, saved.tree)
        check(path, wanted, transforms=chosen)


@given(st.data(), saved_trees(trees_without_lists))
def test_patterns_choose_what_is_loaded(data: st.DataObject, saved: Flat) -> None:
    chosen, found = draw_applied(data, saved)
    if found is None:
        return
    options = data.draw(choices(list(found)))
    with scratch() as path:
        ocp.save(path, saved.tree)
        names = list(filter(is_chosen(**options), found))
        wanted = without_target(found, names) if names or not options else REFUSED
        check(path, wanted, transforms=chosen, **options)


def with_target(
    found: Mapping[str, Leaf], target: Mapping[str, Any], options: Mapping[str, Pattern]
) -> Outcome:
    """Return what a load of these leaves into a target comes to."""
    chosen = is_chosen(**options)
    skipped = {name for name, value in target.items() if value is PLACEHOLDER}
    empty = {name for name, value in target.items() if is_empty_node(value)}
    made = {name: leaf for name, leaf in found.items() if chosen(name) and not leaf.is_kept}
    if any(leaf.is_kept and is_described(target.get(n)) for n, leaf in found.items()):
        return frozenset({TreeMismatchError, TransformError})
    if options and not made:
        return REFUSED
    read: list[str] = []
    for name in target.keys() - skipped - empty:
        if name in made and not is_stored_empty(made[name]):
            read.append(name)
        elif chosen(name) and not (name in found and found[name].is_kept):
            return frozenset({TreeMismatchError})
    for name, leaf in made.items():
        is_wanted = name in target and name not in empty
        below = any(is_above(other, [name]) for other in skipped)
        if not is_wanted and not below and not is_stored_empty(leaf):
            return frozenset({TreeMismatchError})
    values = outcome(made, read)
    errors = set(values) if isinstance(values, frozenset) else set()
    for name in read:
        if np.shape(made[name].value) != getattr(target[name], "shape", np.shape(target[name])):
            errors.add(TreeMismatchError)
    if errors or isinstance(values, frozenset):
        return frozenset(errors)
    as_numpy = {name for name in read if isinstance(target[name], np.ndarray)}
    return {
        **target,
        **{n: np.asarray(value) if n in as_numpy else value for n, value in values.items()},
    }


def is_described(value: object) -> bool:
    return isinstance(value, jax.ShapeDtypeStruct)


@given(st.data(), saved_trees())
def test_a_target_has_what_rules_make(data: st.DataObject, saved: Flat) -> None:
    planned = {**saved.named, **data.draw(st.dictionaries(st.sampled_from(["new", "t/0"]), leaves))}
    chosen = data.draw(rule_lists(saved, planned))
    try:
        target = data.draw(targets(applied(chosen, saved.named, planned)))
    except Refused:
        target = saved.tree
    options = data.draw(choices(list(by_name(target)))) if data.draw(st.booleans()) else {}
    try:
        found = applied(chosen, saved.named, by_name(target))
        wanted = with_target(found, by_name(target), options)
    except Refused:
        wanted = REFUSED
    with scratch() as path:
        ocp.save(path, saved.tree)
        check(path, wanted, like=target, transforms=chosen, **options)


def is_chunk(file: Path) -> bool:
    return file.is_file() and file.name != "zarr.json"


def check_what_is_read(
    data: st.DataObject, saved: Flat, needed: frozenset[str], wanted: Outcome, **given_: Any
) -> None:
    """Check that a load reads all of the leaves that are needed, and no others."""
    with scratch() as path:
        checkpointer(use_ocdbt=False).save(path, saved.tree)
        chunks = {
            name: [f for f in (path / storage_name(names)).rglob("*") if is_chunk(f)]
            for name, names in zip(saved.named, flatten(saved.tree).names, strict=True)
        }
        for file in [file for name in chunks.keys() - needed for file in chunks[name]]:
            file.write_bytes(b"damaged")
        check(path, wanted, **given_)
        stored = sorted(name for name in needed if chunks[name])
        event(f"{len(stored)} of {len(saved.named)} leaves are needed")
        if stored:
            for file in chunks[data.draw(st.sampled_from(stored))]:
                file.unlink()
            check(path, frozenset({CorruptionError}), **given_)


@given(st.data(), saved_trees(trees_without_lists))
def test_only_what_is_needed_is_read(data: st.DataObject, saved: Flat) -> None:
    chosen, found = draw_applied(data, saved)
    if found is None:
        return
    options = data.draw(choices(list(found)))
    names = list(filter(is_chosen(**options), found))
    wanted = without_target(found, names)
    if names and not isinstance(wanted, frozenset):
        needed = frozenset().union(*(found[name].sources for name in names))
        check_what_is_read(data, saved, needed, wanted, transforms=chosen, **options)


@given(st.data(), saved_trees())
def test_only_what_a_target_needs_is_read(data: st.DataObject, saved: Flat) -> None:
    chosen = data.draw(rule_lists(saved, saved.named))
    try:
        target = data.draw(targets(applied(chosen, saved.named, saved.named)))
        found = applied(chosen, saved.named, by_name(target))
    except Refused:
        return
    named = by_name(target)
    wanted = with_target(found, named, {})
    if not isinstance(wanted, frozenset):
        read = [leaf for name, leaf in found.items() if named.get(name, ...) is not ...]
        needed = frozenset().union(*(leaf.sources for leaf in read))
        check_what_is_read(data, saved, needed, wanted, like=target, transforms=chosen)


def dtype_of(value: Any) -> object:
    return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype


@given(st.data(), saved_trees())
def test_what_is_known_of_results_beforehand_is_so(data: st.DataObject, saved: Flat) -> None:
    chosen, found = draw_applied(data, saved)
    if found is None:
        return
    infos = {
        tuple(name.split("/")): ArrayInfo(np.shape(value), dtype_of(value))
        if is_array(value)
        else ArrayInfo()
        for name, value in saved.named.items()
    }
    empty = [tuple(name.split("/")) for name, value in saved.named.items() if is_empty_node(value)]
    nodes = apply_rules(chosen, infos, empty=empty)
    assert nodes.keys() == found.keys()
    for name, node in nodes.items():
        leaf = found[name]
        assert (node.info.shape is not None) == leaf.is_known
        assert {"/".join(read.names) for read in sources_of(node)} == leaf.sources
        if leaf.is_known and not leaf.error:
            assert node.info.shape == np.shape(leaf.value)
            if hasattr(leaf.value, "dtype"):
                assert node.info.dtype == leaf.value.dtype
