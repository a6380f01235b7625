"""Commands that check: damage, the effect of a restore."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click
import jax
import numpy as np
from msgspec import structs

from orbit_ckpt._src.arrays.dtypes import is_prng_dtype
from orbit_ckpt._src.checkpointer.inspect import metadata
from orbit_ckpt._src.cli.executors import open_executor
from orbit_ckpt._src.cli.health import record_verified
from orbit_ckpt._src.cli.meshes import plan_for
from orbit_ckpt._src.cli.output import echo, print_json
from orbit_ckpt._src.cli.readers import parse_reader
from orbit_ckpt._src.cli.rule_files import read_rules
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import find_checkpoint, select_step
from orbit_ckpt._src.errors import TransformError, TreeMismatchError, VersionError
from orbit_ckpt._src.metadata.values import ArrayMetadata, ScalarMetadata, StringMetadata
from orbit_ckpt._src.progress import progress_bar
from orbit_ckpt._src.pytree.engine import TreeIO
from orbit_ckpt._src.pytree.restore.explain import HEADER, RestorePlan, row_of
from orbit_ckpt._src.pytree.restore.target import RestoreOptions
from orbit_ckpt._src.tree.flatten import flatten, is_empty_node
from orbit_ckpt._src.verify.verifier import verify as verify_path


def verify(
    path: str,
    memory: int,
    workers: int | None,
    dask: str | None,
    reader: str | None,
    as_json: bool,
) -> None:
    """Read every byte of a checkpoint or a run; exit with 1 if something is damaged."""
    known = parse_reader(reader)
    root = select_step(path)
    with open_executor(workers, dask) as executor, progress_bar("Checking") as progress:
        report = verify_path(
            root,
            max_bytes=memory * 10**6,
            progress=progress,
            reader=known,
            executor=executor,
        )
    for checkpoint in report.checkpoints:
        damaged = sum(Path(one.checkpoint) == checkpoint for one in report.damage)
        record_verified(checkpoint, damaged)
    if as_json:
        print_json(
            "verify",
            path=report.path,
            intact=report.is_intact,
            checkpoints=list(report.checkpoints),
            files=report.files,
            leaves=report.leaves,
            chunks=report.chunks,
            bytes_checked=report.bytes_checked,
            damage=[
                {
                    "checkpoint": one.checkpoint,
                    "leaf": one.leaf,
                    "chunk": one.chunk,
                    "file": one.file,
                    "what": one.what,
                }
                for one in report.damage
            ],
            shared_damage=[
                {"file": one.file, "checkpoints": list(one.checkpoints)}
                for one in report.shared_damage
            ],
            unchecked=[
                {"directory": one.directory, "count": one.count, "what": one.what}
                for one in report.unchecked
            ],
            unverifiable=[
                {"checkpoint": one.checkpoint, "what": one.what} for one in report.unverifiable
            ],
        )
    else:
        echo(str(report), style=None if report else "red")
    if report.damage:
        raise click.exceptions.Exit(1)
    if report.unverifiable:
        count = len({one.checkpoint for one in report.unverifiable})
        raise VersionError(
            f"{count} of {len(report.checkpoints)} checkpoints cannot be verified: "
            f"{report.unverifiable[0]}"
        )


def plan(  # noqa: PLR0913, PLR0917 - options of a command
    path: str,
    rules: Path | None,
    like: str | None,
    only: Sequence[str],
    skip: Sequence[str],
    missing: Literal["error", "skip"],
    unexpected: Literal["error", "ignore"],
    meshes: Sequence[Path],
    as_json: bool,
) -> None:
    """Show what a restore would do, leaf by leaf; exit with 1 if it would fail."""
    if meshes:
        plan_for(path, meshes, as_json)
        return
    root = find_checkpoint(path)
    request = RestoreOptions(
        target=None if like is None else _target(find_checkpoint(like)),
        match_leaf_types=True,
        transforms=read_rules(rules) if rules is not None else (),
        only=only or None,
        skip=skip or None,
        missing=missing,
        unexpected=unexpected,
    )
    try:
        found = TreeIO().explain(root, request, on_host=True)
    except (TreeMismatchError, TransformError) as error:
        if as_json:
            print_json("plan", path=root, possible=False, error=str(error))
        else:
            echo(f"cannot be restored: {error}", style="red")
        raise click.exceptions.Exit(1) from None
    if as_json:
        _print_plan(root, found)
    else:
        rows = [row_of(leaf) for leaf in found.leaves]
        cells = [[name, "" if source == name else source, *row] for name, source, *row in rows]
        print_table(HEADER, cells, right=HEADER[-2:])
        for line in found.summary:
            echo(line)


def _print_plan(path: Path, found: RestorePlan) -> None:
    print_json(
        "plan",
        path=path,
        possible=True,
        leaves=[
            {**structs.asdict(leaf), "dtype": None if leaf.dtype is None else str(leaf.dtype)}
            for leaf in found.leaves
        ],
        ignored=found.ignored,
        bytes_read=found.bytes_read,
        peak_bytes=found.peak_bytes,
    )


def _target(like: Path) -> object:
    """Return a target like the checkpoint's leaves, without their devices."""
    flat = flatten(metadata(like).tree)
    return flat.unflatten([_abstract(value) for value in flat.values])


def _abstract(value: object) -> object:
    if is_empty_node(value):
        return value
    if isinstance(value, StringMetadata):
        return ""
    if isinstance(value, ScalarMetadata) and not is_prng_dtype(value.dtype):
        return np.zeros((), value.dtype)[()]
    if isinstance(value, ArrayMetadata):
        return jax.ShapeDtypeStruct(value.shape, value.dtype)
    return value
