"""Checkpoints written anew in another format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import jax
import typer

from orbit_ckpt.arrays.dtypes import as_dtype
from orbit_ckpt.checkpointer.convert import convert as convert_checkpoint
from orbit_ckpt.cli.output import (
    JSON_OPTION,
    echo,
    human_bytes,
    print_json,
    progress_bar,
    stored_bytes,
)
from orbit_ckpt.cli.rule_files import RULES_OPTION, read_rules
from orbit_ckpt.cli.values import MEMORY_OPTION
from orbit_ckpt.errors import CheckpointExistsError
from orbit_ckpt.storage.path import resolve_path


class Written(StrEnum):
    """The formats that can be written."""

    ORBIT = "orbit"
    T5X = "t5x"
    SAFETENSORS = "safetensors"
    FLAX = "flax"


def convert(  # noqa: PLR0913, PLR0917 - options of a command
    source: str,
    destination: str,
    to: Annotated[Written, typer.Option(help="The format to write.")],
    rules: Annotated[Path | None, RULES_OPTION] = None,
    cast: Annotated[
        list[str],
        typer.Option(
            help="Dtype for numbers of its kind: 'bfloat16', or 'params/**=bfloat16' for leaves "
            "that match; may be repeated, the first that matches counts.",
            metavar="[PATTERN=]DTYPE",
        ),
    ] = [],  # noqa: B006 - Typer copies it
    only: Annotated[list[str], typer.Option(help="Only leaves that match.")] = [],  # noqa: B006 - copied
    skip: Annotated[list[str], typer.Option(help="No leaves that match.")] = [],  # noqa: B006 - copied
    max_shard_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For a directory of safetensors: begin a new file above N bytes.",
            metavar="N",
        ),
    ] = None,
    memory: Annotated[int, MEMORY_OPTION] = 256,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file or a checkpoint that is there.")
    ] = False,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Write a checkpoint anew in another format, whatever format it is in.

    Arrays pass through in parts. What is written appears under its name when it is complete; if it
    cannot be completed nothing is left.
    """
    start, end = resolve_path(source), resolve_path(destination)
    if not overwrite and end.exists():
        raise CheckpointExistsError(f"{end} exists already. Pass --overwrite, or another path.")
    casts = _casts(cast)
    # rules may compute with arrays of JAX, such as typed keys: on the host, in any width
    for option, value in (("jax_platforms", "cpu"), ("jax_enable_x64", True)):
        jax.config.update(option, value)  # pyright: ignore[reportUnknownMemberType] - not typed
    with progress_bar("Converting") as told:
        convert_checkpoint(
            start,
            end,
            to=to.value,
            only=only or None,
            skip=skip or None,
            transforms=read_rules(rules) if rules is not None else (),
            cast=casts or None,
            overwrite=overwrite,
            max_bytes=memory * 10**6,
            max_shard_bytes=max_shard_bytes,
            progress=told,
        )
    nbytes = stored_bytes(end)
    if as_json:
        print_json("convert", source=start, destination=end, to=to.value, bytes=nbytes)
    else:
        echo(f"{start} -> {end}: {to.value}, {human_bytes(nbytes)}")


def _casts(texts: list[str]) -> dict[str, object]:
    """Return dtypes by patterns.

    Raises:
        ValueError: There is no such dtype.
    """
    found: dict[str, object] = {}
    for text in texts:
        pattern, _, name = text.rpartition("=")
        try:
            found.setdefault(pattern or "**", as_dtype(name))
        except TypeError as error:
            raise ValueError(
                f"--cast {text!r}: {name!r} is no dtype; give one such as bfloat16 or float32."
            ) from error
    return found
