"""What there is: steps, items, leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import orbit_ckpt
from orbit_ckpt.cli.leaves import Leaf, list_leaves
from orbit_ckpt.cli.options import Order
from orbit_ckpt.cli.output import (
    echo,
    human_bytes,
    human_number,
    print_json,
    print_table,
    stored_bytes,
)
from orbit_ckpt.cli.runs import (
    UNKNOWN_TIME,
    Keeping,
    list_run,
    unfinished_saves,
)
from orbit_ckpt.errors import CheckpointNotFoundError
from orbit_ckpt.formats.orbax_layout import find_items, holds_tree
from orbit_ckpt.formats.registry import foreign_format
from orbit_ckpt.manager.index import StepEntry
from orbit_ckpt.metadata.files import read_step
from orbit_ckpt.storage.integrity import CheckedDirectory
from orbit_ckpt.storage.layout import ARRAY_METADATAS, OCDBT_DATA, is_process_directory
from orbit_ckpt.storage.path import resolve_path
from orbit_ckpt.tree.keypath import NamePath

_NOT_ITEMS = frozenset({ARRAY_METADATAS, OCDBT_DATA})


def ls(
    path: str,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: int | None,
    metric: str | None,
    lowest: bool,
    as_json: bool,
) -> None:
    """List the steps of a run, or the items of a checkpoint."""
    root = resolve_path(path)
    foreign = foreign_format(root)
    try:
        entries = list_run(root, foreign)
    except CheckpointNotFoundError:
        if not root.is_dir() or not unfinished_saves(root, []):
            raise
        entries = []  # nothing else yet
    unfinished = unfinished_saves(root, entries or []) if root.is_dir() else []
    if entries is not None:
        keeping = Keeping(keep_last, keep_every, keep_best, metric, lowest)
        _list_run(root, entries, keeping, unfinished, as_json)
    elif foreign is not None:
        _list_foreign(root, foreign.name, unfinished, as_json)
    else:
        _list_checkpoint(root, unfinished, as_json)


def _list_run(
    root: Path, entries: Sequence[StepEntry], keeping: Keeping, unfinished: list[str], as_json: bool
) -> None:
    infos = [entry.info for entry in entries]
    kept = keeping.rules(infos) if keeping.is_given else None
    steps = [
        step_fields(entry) | {"kept_by": None if kept is None else kept[entry.info.step]}
        for entry in entries
    ]
    if as_json:
        print_json("ls", kind="run", path=root, steps=steps, unfinished=unfinished)
        return
    names = list(dict.fromkeys(name for info in infos for name in info.metrics or ()))
    header = ["step", "size", "time", *names, "marks", "kept by", "name"]
    rows: list[list[str]] = []
    for entry, step in zip(entries, steps, strict=True):
        info = entry.info
        marks = [name for name in ("pinned", "temporary") if step[name]]
        metrics = info.metrics or {}
        rows.append(
            [
                str(info.step),
                human_bytes(cast(int | None, step["bytes"])),
                "" if info.time is UNKNOWN_TIME else format_time(info.time),
                *(human_number(metrics.get(name)) for name in names),
                ", ".join(marks),
                "" if kept is None else ", ".join(kept[info.step]) or "-",
                "" if entry.path.name == str(info.step) else entry.path.name,
            ]
        )
    print_table(header, rows, right={"step", "size", *names})
    _print_unfinished(unfinished)


def _print_unfinished(names: Sequence[str]) -> None:
    for name in names:
        echo(f"unfinished: {name}", style="yellow")


def step_fields(entry: StepEntry) -> dict[str, object]:
    """Return what is known of a step as fields of JSON."""
    info = entry.info
    return {
        "step": info.step,
        "path": entry.path,
        "bytes": stored_bytes(entry.path),
        "time": None if info.time is UNKNOWN_TIME else info.time.isoformat(timespec="seconds"),
        "metrics": info.metrics,
        "pinned": info.pinned,
        "temporary": info.temporary,
    }


def _list_foreign(root: Path, name: str, unfinished: Sequence[str], as_json: bool) -> None:
    nbytes, leaves = stored_bytes(root), len(list_leaves(str(root)))
    custom = orbit_ckpt.metadata(root).custom_metadata
    if as_json:
        items = [{"item": "", "bytes": nbytes, "leaves": leaves, "handler": name}]
        print_json(
            "ls",
            kind="checkpoint",
            path=root,
            time=None,
            custom_metadata=custom,
            items=items,
            unfinished=unfinished,
        )
        return
    row = ["(the checkpoint)", human_bytes(nbytes), str(leaves), name]
    print_table(["item", "size", "leaves", "format"], [row], right={"size", "leaves"})
    known: Mapping[object, object] = {}
    if isinstance(custom, Mapping):
        known = cast(Mapping[object, object], custom)
    for key, value in known.items():
        echo(f"{key}: {value}")
    _print_unfinished(unfinished)


def _list_checkpoint(root: Path, unfinished: Sequence[str], as_json: bool) -> None:
    document = read_step(CheckedDirectory(root))
    handlers = document.item_handlers
    names: Sequence[str] = [""] if holds_tree(root) else find_items(root)
    items: list[dict[str, object]] = []
    for name in names:
        if name in _NOT_ITEMS or is_process_directory(name):
            continue
        directory = root / name
        recorded = handlers if isinstance(handlers, str) else (handlers or {}).get(name)
        is_tree = holds_tree(directory)
        items.append(
            {
                "item": name,
                "bytes": stored_bytes(directory),
                "leaves": len(list_leaves(str(directory))) if is_tree else None,
                "handler": recorded,
            }
        )
    saved = document.commit_timestamp_nsecs
    time = None if saved is None else datetime.fromtimestamp(saved / 1e9, tz=UTC)
    if as_json:
        print_json(
            "ls",
            kind="checkpoint",
            path=root,
            time=None if time is None else time.isoformat(timespec="seconds"),
            custom_metadata=document.custom_metadata,
            items=items,
            unfinished=unfinished,
        )
        return
    rows = [
        [
            str(item["item"] or "(the checkpoint)"),
            human_bytes(stored_bytes(root / str(item["item"]))),
            "" if item["leaves"] is None else str(item["leaves"]),
            str(item["handler"] or "").rpartition(".")[2],
        ]
        for item in items
    ]
    print_table(["item", "size", "leaves", "handler"], rows, right={"size", "leaves"})
    if time is not None:
        echo(f"saved {format_time(time)}")
    for key, value in document.custom_metadata.items():
        echo(f"{key}: {value}")
    _print_unfinished(unfinished)


def format_time(time: datetime) -> str:
    """Return a time for people, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def tree(path: str, patterns: list[str], depth: int | None, sort: Order, as_json: bool) -> None:
    """List the leaves of a checkpoint: names, shapes, dtypes, sizes, shardings."""
    leaves = list_leaves(path, patterns)
    total = sum(leaf.nbytes for leaf in leaves)
    if depth is not None:
        _print_groups(path, _group(leaves, depth), sort, total, as_json)
        return
    leaves = _sorted(leaves, sort)
    if as_json:
        rows = [leaf.fields for leaf in leaves]
        print_json("tree", path=resolve_path(path), leaves=rows, bytes=total)
        return
    cells = [
        [
            leaf.name or "(the tree)",
            leaf.description,
            human_bytes(leaf.nbytes) if leaf.shape is not None else "",
            leaf.sharding or "",
        ]
        for leaf in leaves
    ]
    print_table(["leaf", "type", "size", "sharding"], cells, right={"size"})
    echo(f"{len(leaves)} leaves, {human_bytes(total)}")


def _sorted(leaves: list[Leaf], order: Order) -> list[Leaf]:
    match order:
        case Order.TREE:
            return leaves
        case Order.NAME:
            return sorted(leaves, key=lambda leaf: leaf.name)
        case Order.SIZE:
            return sorted(leaves, key=lambda leaf: -leaf.nbytes)


def _group(leaves: Sequence[Leaf], depth: int) -> list[Leaf]:
    """Return one entry for all leaves below a name of some keys."""
    groups: dict[NamePath, list[Leaf]] = {}
    for leaf in leaves:
        groups.setdefault(leaf.keys[:depth], []).append(leaf)
    return [
        Leaf(keys, f"{len(found)} leaves", nbytes=sum(leaf.nbytes for leaf in found))
        if len(found) > 1 or found[0].keys != keys
        else found[0]
        for keys, found in groups.items()
    ]


def _print_groups(path: str, groups: list[Leaf], order: Order, total: int, as_json: bool) -> None:
    groups = _sorted(groups, order)
    if as_json:
        rows = [
            {"name": group.name, "description": group.description, "nbytes": group.nbytes}
            for group in groups
        ]
        print_json("tree", path=resolve_path(path), groups=rows, bytes=total)
        return
    cells = [
        [group.name, group.description, human_bytes(group.nbytes), _share(group.nbytes, total)]
        for group in groups
    ]
    print_table(["below", "type", "size", "share"], cells, right={"size", "share"})


def _share(nbytes: int, total: int) -> str:
    return f"{100 * nbytes / total:.1f} %" if total else ""
