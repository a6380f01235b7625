"""What there is: steps, items, leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import typer

import orbit_ckpt
from orbit_ckpt.cli.leaves import Leaf, list_leaves
from orbit_ckpt.cli.output import (
    FILTER_OPTION,
    JSON_OPTION,
    directory_bytes,
    echo,
    human_bytes,
    human_number,
    print_json,
    print_table,
    stored_bytes,
)
from orbit_ckpt.cli.runs import (
    KEEP_BEST,
    KEEP_EVERY,
    KEEP_LAST,
    LOWEST,
    METRIC,
    AnyStepName,
    Keeping,
    is_run,
    unfinished_saves,
)
from orbit_ckpt.formats.base import ForeignStep
from orbit_ckpt.formats.orbax import find_items, holds_tree
from orbit_ckpt.formats.registry import foreign_format, foreign_steps
from orbit_ckpt.manager.index import StepIndex
from orbit_ckpt.manager.step_info import StepInfo
from orbit_ckpt.metadata.files import read_step
from orbit_ckpt.storage.integrity import CheckedDirectory
from orbit_ckpt.storage.layout import ARRAY_METADATAS, OCDBT_DATA, is_process_directory
from orbit_ckpt.storage.path import resolve_path
from orbit_ckpt.tree.keypath import NamePath

_NOT_ITEMS = frozenset({ARRAY_METADATAS, OCDBT_DATA})


class Order(StrEnum):
    """How leaves are sorted."""

    TREE = "tree"
    NAME = "name"
    SIZE = "size"


def ls(
    path: str,
    keep_last: Annotated[int | None, KEEP_LAST] = None,
    keep_every: Annotated[int | None, KEEP_EVERY] = None,
    keep_best: Annotated[int | None, KEEP_BEST] = None,
    metric: Annotated[str | None, METRIC] = None,
    lowest: Annotated[bool, LOWEST] = False,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """List the steps of a run, or the items of a checkpoint.

    What a run keeps is not recorded in it: with the options of `prune`, a column tells which rule
    would keep each step.
    """
    root = resolve_path(path)
    foreign = foreign_format(root)
    steps = foreign_steps(root, foreign) if foreign is not None else ()
    if steps:
        _list_foreign_run(root, steps, as_json)
    elif foreign is not None:
        _list_foreign(root, foreign.name, as_json)
    elif is_run(root):
        _list_run(root, Keeping(keep_last, keep_every, keep_best, metric, lowest), as_json)
    else:
        _list_checkpoint(root, as_json)


def _list_run(root: Path, keeping: Keeping, as_json: bool) -> None:
    index = StepIndex(root, AnyStepName())
    infos = index.infos()
    kept = keeping.rules(infos) if keeping.is_given else None
    steps = [
        step_fields(index, info) | {"kept_by": None if kept is None else kept[info.step]}
        for info in infos
    ]
    unfinished = unfinished_saves(root)
    if as_json:
        print_json("ls", kind="run", path=root, steps=steps, unfinished=unfinished)
        return
    names = list(dict.fromkeys(name for info in infos for name in info.metrics or ()))
    header = ["step", "size", "time", *names, "marks", "kept by"]
    rows: list[list[str]] = []
    for info, step in zip(infos, steps, strict=True):
        marks = [name for name in ("pinned", "temporary") if step[name]]
        metrics = info.metrics or {}
        rules = [] if kept is None else [", ".join(kept[info.step]) or "-"]
        rows.append(
            [
                str(info.step),
                human_bytes(directory_bytes(index.path(info.step))),
                format_time(info.time),
                *(human_number(metrics.get(name)) for name in names),
                ", ".join(marks),
                *(rules or [""]),
            ]
        )
    print_table(header, rows, right={"step", "size", *names})
    for name in unfinished:
        echo(f"unfinished: {name}", style="yellow")


def step_fields(index: StepIndex, info: StepInfo) -> dict[str, object]:
    """Return what is known of a step as fields of JSON."""
    return {
        "step": info.step,
        "path": index.path(info.step),
        "bytes": directory_bytes(index.path(info.step)),
        "time": info.time.isoformat(timespec="seconds"),
        "metrics": info.metrics,
        "pinned": info.pinned,
        "temporary": info.temporary,
    }


def _list_foreign_run(root: Path, found: Sequence[ForeignStep], as_json: bool) -> None:
    times = [None if one.time is None else datetime.fromtimestamp(one.time, UTC) for one in found]
    steps: list[dict[str, object]] = [
        {
            "step": one.step,
            "path": one.path,
            "bytes": stored_bytes(one.path),
            "time": time and time.isoformat(timespec="seconds"),
            "metrics": None,
            "pinned": one.is_pinned,
            "temporary": one.is_temporary,
            "kept_by": None,
        }
        for one, time in zip(found, times, strict=True)
    ]
    if as_json:
        print_json("ls", kind="run", path=root, steps=steps, unfinished=[])
        return
    rows = [
        [
            str(one.step),
            human_bytes(stored_bytes(one.path)),
            format_time(time) if time else "",
            ", ".join(name for name in ("pinned", "temporary") if step[name]),
            one.path.name,
        ]
        for one, step, time in zip(found, steps, times, strict=True)
    ]
    print_table(["step", "size", "time", "marks", "name"], rows, right={"step", "size"})


def _list_foreign(root: Path, name: str, as_json: bool) -> None:
    nbytes, leaves = stored_bytes(root), len(list_leaves(str(root)))
    custom = orbit_ckpt.metadata(root).custom_metadata
    if as_json:
        items = [{"item": "", "bytes": nbytes, "leaves": leaves, "handler": name}]
        print_json(
            "ls", kind="checkpoint", path=root, time=None, custom_metadata=custom, items=items
        )
        return
    row = ["(the checkpoint)", human_bytes(nbytes), str(leaves), name]
    print_table(["item", "size", "leaves", "format"], [row], right={"size", "leaves"})
    known: Mapping[object, object] = {}
    if isinstance(custom, Mapping):
        known = cast(Mapping[object, object], custom)
    for key, value in known.items():
        echo(f"{key}: {value}")


def _list_checkpoint(root: Path, as_json: bool) -> None:
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
                "bytes": directory_bytes(directory),
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
        )
        return
    rows = [
        [
            str(item["item"] or "(the checkpoint)"),
            human_bytes(directory_bytes(root / str(item["item"]))),
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


def format_time(time: datetime) -> str:
    """Return a time for people, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def tree(
    path: str,
    patterns: Annotated[list[str], FILTER_OPTION] = [],  # noqa: B006 - Typer copies it
    depth: Annotated[
        int | None, typer.Option(min=1, help="Sum up what is below N keys.", metavar="N")
    ] = None,
    sort: Annotated[Order, typer.Option(help="In which order.")] = Order.TREE,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
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
