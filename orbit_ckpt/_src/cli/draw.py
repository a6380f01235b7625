"""The command that draws a checkpoint's tree, or lists its leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from orbit_ckpt._src.cli.inspect import Leaf, list_leaves
from orbit_ckpt._src.cli.output import echo, print_json
from orbit_ckpt._src.cli.readers import parse_reader
from orbit_ckpt._src.cli.runs import list_run
from orbit_ckpt._src.cli.sharing import describe_sharing
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import find_checkpoint
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.formats.locate import locate
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.layout import number_in
from orbit_ckpt._src.text import human_bytes
from orbit_ckpt._src.tree.diff import nearest_names
from orbit_ckpt._src.tree.keypath import NamePath

Order = Literal["tree", "name", "size"]

COLUMNS = ("type", "size", "share", "sharding", "chunks", "compression", "dtype", "shape", "bytes")
"""Choices of `--columns`."""

_USUAL = ("type", "size", "sharding")
_RIGHT = frozenset({"size", "share", "bytes"})


class Node(Struct):
    """A node of a tree.

    Attributes:
        keys: Its keys.
        label: What its parent calls it: one key, or several if all but the last have one child.
        children: The nodes below it.
        leaf: Its leaf; None if it has children.
        nbytes: Size of all values below it.
        leaves: Number of leaves below it.
    """

    keys: NamePath
    label: str
    children: list[Node]
    leaf: Leaf | None = None
    nbytes: int = 0
    leaves: int = 0


class _Row(Struct, frozen=True):
    """A line of the output: a name with its indentation, and what the columns show."""

    name: str
    leaf: Leaf
    is_group: bool = False


def tree(  # noqa: PLR0913, PLR0917 - options of a command
    path: str,
    only: Sequence[str],
    depth: int | None,
    sort: Order,
    columns: str | None,
    flat: bool,
    reader: str | None,
    as_json: bool,
) -> None:
    """Draw the tree of a checkpoint: names, types, sizes, shardings."""
    titles = _USUAL if columns is None else _parse_columns(columns)
    known = parse_reader(reader)
    root = find_checkpoint(path, quiet=not (flat or as_json), reader=known)
    leaves = list_leaves(root, only, known)
    total = sum(leaf.nbytes for leaf in leaves)
    if as_json:
        _print_json(root, leaves, depth, sort, total)
        return
    if flat:
        groups = leaves if depth is None else _group(leaves, depth)
        rows = [_Row(leaf.name or "(the tree)", leaf) for leaf in _sorted(groups, sort)]
    else:
        rows = _draw(root, build(leaves), depth, sort)
    cells = [[row.name, *(_cell(row, title, total) for title in titles)] for row in rows]
    print_table(["leaf" if flat else "tree", *titles], cells, right=_RIGHT)
    echo(f"{len(leaves)} leaves, {human_bytes(total)}")
    if (sharing := _sharing(root)) is not None:
        echo(sharing)


def _sharing(step: Path) -> str | None:
    """Return what a step of a local run shares with other steps of it; None if nothing."""
    if not directory_of(step).has_local_files:
        return None
    try:
        return describe_sharing(step, lambda: list_run(locate(step.parent)) or ())
    except CheckpointError:  # it is no step of a run
        return None


def _parse_columns(text: str) -> Sequence[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in COLUMNS:
            near = nearest_names(name, COLUMNS)
            meant = f"Did you mean {near[0]!r}?" if near else f"Give some of {', '.join(COLUMNS)}."
            raise ValueError(f"--columns: there is no column {name!r}. {meant}")
    return names


def _print_json(
    root: Path, leaves: Sequence[Leaf], depth: int | None, sort: Order, total: int
) -> None:
    if depth is None:
        rows = [leaf.fields for leaf in _sorted(leaves, sort)]
        print_json("tree", path=root, leaves=rows, bytes=total)
        return
    groups = [
        {"name": group.name, "description": group.description, "nbytes": group.nbytes}
        for group in _sorted(_group(leaves, depth), sort)
    ]
    print_json("tree", path=root, groups=groups, bytes=total)


def build(leaves: Sequence[Leaf]) -> Node:
    """Return the tree of leaves; a node with one child is joined with it."""
    root = Node((), "", [])
    for leaf in leaves:
        node = root
        for i in range(len(leaf.keys)):
            node.nbytes += leaf.nbytes
            node.leaves += 1
            keys = leaf.keys[: i + 1]
            if not (node.children and node.children[-1].keys == keys):
                node.children.append(Node(keys, keys[-1], []))
            node = node.children[-1]
        node.leaf, node.nbytes, node.leaves = leaf, leaf.nbytes, 1
    root.children = [_joined(child) for child in root.children]
    return root


def _joined(node: Node) -> Node:
    while len(node.children) == 1:
        child = node.children[0]
        child.label = f"{node.label}/{child.label}"
        node = child
    node.children = [_joined(child) for child in node.children]
    return node


def _draw(root: Path, top: Node, depth: int | None, sort: Order) -> list[_Row]:
    lines = _LINES if _can_draw() else _PLAIN_LINES
    rows = [_Row(_title(root), _summary(top), is_group=True)]

    def add(node: Node, indent: str, rest: int | None) -> None:
        key = _KEYS.get(sort)
        children = node.children if key is None else sorted(node.children, key=key)
        for i, child in enumerate(children):
            branch, gap = lines[i == len(children) - 1]
            leaf = child.leaf or _summary(child)
            rows.append(_Row(f"{indent}{branch}{child.label}", leaf, is_group=child.leaf is None))
            if rest is None or rest > 1:
                add(child, indent + gap, None if rest is None else rest - 1)

    if top.leaf is not None:  # the tree is one leaf
        return [_Row(_title(root), top.leaf)]
    add(top, "", depth)
    return rows


def _title(root: Path) -> str:
    """Return the last part of a path, of a step with the name of its run."""
    return root.name if number_in(root.name) is None else f"{root.parent.name}/{root.name}"


_LINES = {False: ("├── ", "│   "), True: ("└── ", "    ")}
_PLAIN_LINES = {False: ("|-- ", "|   "), True: ("`-- ", "    ")}


def _can_draw() -> bool:
    try:
        "├└│─".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _summary(node: Node) -> Leaf:
    count = f"{node.leaves} {'leaf' if node.leaves == 1 else 'leaves'}"
    return Leaf(node.keys, count, nbytes=node.nbytes)


def _cell(row: _Row, title: str, total: int) -> str:
    leaf = row.leaf
    has_size = row.is_group or leaf.shape is not None
    if title in _RIGHT:
        return _SIZES[title](leaf.nbytes, total) if has_size else ""
    if title == "type":
        return leaf.description
    if title in ("chunks", "shape"):
        shape = leaf.shape if title == "shape" else leaf.chunk_shape
        return "" if shape is None else str(list(shape))
    return getattr(leaf, title) or ""


_SIZES: dict[str, Callable[[int, int], str]] = {
    "size": lambda nbytes, _: human_bytes(nbytes),
    "bytes": lambda nbytes, _: str(nbytes),
    "share": lambda nbytes, total: f"{100 * nbytes / total:.1f} %" if total else "",
}

_KEYS: dict[Order, Callable[[Node], Any]] = {
    "name": lambda node: node.label,
    "size": lambda node: -node.nbytes,
}


def _sorted(leaves: Sequence[Leaf], order: Order) -> list[Leaf]:
    match order:
        case "tree":
            return list(leaves)
        case "name":
            return sorted(leaves, key=lambda leaf: leaf.name)
        case "size":
            return sorted(leaves, key=lambda leaf: -leaf.nbytes)


def _group(leaves: Sequence[Leaf], depth: int) -> list[Leaf]:
    """Return one entry for all leaves with the same first keys."""
    groups: dict[NamePath, list[Leaf]] = {}
    for leaf in leaves:
        groups.setdefault(leaf.keys[:depth], []).append(leaf)
    return [
        Leaf(keys, f"{len(found)} leaves", nbytes=sum(leaf.nbytes for leaf in found))
        if len(found) > 1 or found[0].keys != keys
        else found[0]
        for keys, found in groups.items()
    ]
