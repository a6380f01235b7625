"""Commands that write a checkpoint anew: conversions and copies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax

from orbit_ckpt._src.checkpointer.convert import convert as convert_checkpoint
from orbit_ckpt._src.checkpointer.copy import copy as copy_checkpoint
from orbit_ckpt._src.cli.executors import open_executor
from orbit_ckpt._src.cli.output import echo, print_json, stored_bytes
from orbit_ckpt._src.cli.readers import parse_dtype, parse_reader
from orbit_ckpt._src.cli.rule_files import read_rules
from orbit_ckpt._src.cli.targets import find_checkpoint, select_step
from orbit_ckpt._src.errors import CheckpointExistsError
from orbit_ckpt._src.formats.base import writable_formats
from orbit_ckpt._src.formats.locate import Kind, locate
from orbit_ckpt._src.progress import progress_bar
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.text import human_bytes


def convert(  # noqa: PLR0913, PLR0917 - options of a command
    source: str,
    destination: str,
    to: str | None,
    rules: Path | None,
    cast: Sequence[str],
    only: Sequence[str],
    skip: Sequence[str],
    max_shard_bytes: int | None,
    inline: Sequence[str],
    memory: int,
    overwrite: bool,
    workers: int | None,
    dask: str | None,
    reader: str | None,
    as_json: bool,
) -> None:
    """Convert a checkpoint of any format to another one."""
    if to is None:
        to = _format_of(destination)
    casts, known = _casts(cast), parse_reader(reader)
    start, end = find_checkpoint(source, reader=known), resolve_path(destination)
    if not overwrite and end.exists():
        raise CheckpointExistsError(f"{end} exists already. Pass --overwrite, or another path.")
    # rules may compute with JAX arrays, such as typed keys: on the host, in any width
    for option, value in (("jax_platforms", "cpu"), ("jax_enable_x64", True)):
        jax.config.update(option, value)  # pyright: ignore[reportUnknownMemberType] - untyped
    with open_executor(workers, dask) as executor, progress_bar("Converting") as progress:
        convert_checkpoint(
            start,
            end,
            to=to,
            only=only or None,
            skip=skip or None,
            transforms=read_rules(rules) if rules is not None else (),
            cast=casts or None,
            overwrite=overwrite,
            max_bytes=memory * 10**6,
            max_shard_bytes=max_shard_bytes,
            inline=inline or None,
            progress=progress,
            reader=known,
            executor=executor,
        )
    nbytes = stored_bytes(end)
    if as_json:
        print_json("convert", source=start, destination=end, to=to, bytes=nbytes)
    else:
        echo(f"{start} -> {end}: {to}, {human_bytes(nbytes)}")


def _format_of(destination: str) -> str:
    """Return the format that a destination is named after.

    Raises:
        ValueError: It is named after none.
    """
    if destination.endswith(".safetensors"):
        return "safetensors"
    formats = ", ".join(sorted({"orbit", *writable_formats()}))
    raise ValueError(f"{destination} names no format. Give --to with one of: {formats}.")


def _casts(texts: Sequence[str]) -> dict[str, object]:
    """Return dtypes by patterns.

    Raises:
        ValueError: A dtype does not exist.
    """
    found: dict[str, object] = {}
    for text in texts:
        pattern, _, name = text.rpartition("=")
        try:
            found.setdefault(pattern or "**", parse_dtype(name))
        except ValueError as error:
            raise ValueError(f"--cast {text!r}: {error}") from error
    return found


def cp(
    source: str,
    destination: str,
    overwrite: bool,
    check: bool,
    workers: int | None,
    dask: str | None,
    as_json: bool,
) -> None:
    """Copy a checkpoint."""
    start, end = select_step(source), resolve_path(destination)
    if locate(start).kind is Kind.RUN:
        raise ValueError(f"{start} is a run; give one of its steps, such as {start}@latest.")
    if not overwrite and directory_of(end).has_local_files and end.exists():
        raise CheckpointExistsError(f"{end} exists already. Pass --overwrite, or another path.")
    with open_executor(workers, dask) as executor, progress_bar("Copying") as progress:
        nbytes = copy_checkpoint(
            start, end, overwrite=overwrite, check=check, progress=progress, executor=executor
        )
    if as_json:
        print_json("cp", source=start, destination=end, bytes=nbytes, verified=check)
    else:
        echo(f"{start} -> {end}: {human_bytes(nbytes)}{', verified' if check else ''}")
