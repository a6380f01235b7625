"""The command that writes leaves to a file of numpy's."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import click
import numpy as np

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, as_dtype
from orbit_ckpt._src.checkpointer.statistics import as_host, open_leaves
from orbit_ckpt._src.cli.inspect import Leaf, choose_leaves, list_leaves
from orbit_ckpt._src.cli.output import echo, print_json
from orbit_ckpt._src.cli.readers import parse_dtype, parse_reader
from orbit_ckpt._src.cli.targets import find_checkpoint
from orbit_ckpt._src.cli.values import print_damage
from orbit_ckpt._src.errors import CheckpointExistsError, CorruptionError
from orbit_ckpt._src.progress import progress_bar
from orbit_ckpt._src.storage.path import resolve_local, storage_errors
from orbit_ckpt._src.text import human_bytes
from orbit_ckpt._src.type_handlers.lazy import LazyArray

_ADVICE = "Check that its directory exists and may be written."


def export(
    path: str,
    leaf: str,
    output: Path,
    cast_to: str | None,
    overwrite: bool,
    reader: str | None,
    as_json: bool,
) -> None:
    """Write a leaf to a .npy file, or all leaves that match a pattern to a .npz file."""
    form, file = parse_reader(reader), resolve_local(output)
    if file.suffix not in (".npy", ".npz"):
        raise ValueError(f"{file}: the file must end in .npy, for one leaf, or in .npz.")
    if file.exists() and not overwrite:
        raise CheckpointExistsError(f"{file} exists already. Pass --overwrite, or another path.")
    root = find_checkpoint(path, reader=form)
    leaves = choose_leaves(list_leaves(root, reader=form), leaf)
    if len(leaves) > 1 and file.suffix == ".npy":
        raise ValueError(f"{leaf!r} matches {len(leaves)} leaves; {file.name} must end in .npz.")
    values = open_leaves(root, reader=form)
    dtypes = [_stored_dtype(one, values[one.keys], cast_to) for one in leaves]
    temporary = file.with_name(f".{file.name}.partial")
    damage: dict[str, CorruptionError] = {}
    with progress_bar("Exporting") as progress, storage_errors(file, "writing", _ADVICE):
        try:
            with open(temporary, "wb") as target:
                arrays = [values[one.keys] for one in leaves]
                _write(target, leaves, arrays, dtypes, progress, damage)
            if len(damage) < len(leaves):
                temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    names = [one.name for one in leaves if one.name not in damage]
    nbytes = file.stat().st_size if names else 0
    if as_json:
        damaged = [str(error) for error in damage.values()]
        written = {"output": file, "leaves": names, "bytes": nbytes}
        print_json("export", path=root, **written, damage=damaged)
    else:
        if names:
            what = names[0] if len(names) == 1 else f"{len(names)} leaves"
            echo(f"{file}: {what}, {human_bytes(nbytes)}")
        print_damage(list(damage.values()))
    if damage:
        raise click.exceptions.Exit(1)


def _stored_dtype(leaf: Leaf, value: object, cast_to: str | None) -> DType:
    """Return the dtype in the file.

    Raises:
        ValueError: The leaf holds no numbers, or of a dtype that the file cannot record.
    """
    is_array = isinstance(value, LazyArray) and value.leaf.key_impl is None
    if not is_array and as_host(value) is None:
        raise ValueError(
            f"{leaf.name} is {leaf.description}, which .npy files cannot hold. "
            "Choose arrays of numbers."
        )
    dtype = as_dtype(leaf.dtype) if cast_to is None else parse_dtype(cast_to)
    if dtype.kind == "V" or dtype.char not in np.typecodes["All"]:
        raise ValueError(
            f"{leaf.name} has dtype {dtype}, which .npy files do not record. Pass --cast float32."
        )
    return dtype


def _write(
    target: BinaryIO,
    leaves: Sequence[Leaf],
    values: Sequence[object],
    dtypes: Sequence[DType],
    progress: Callable[[int, int], None],
    damage: dict[str, CorruptionError],
) -> None:
    """Write arrays into one file, in the form that its name asks for; collect damaged ones."""
    done, total = 0, sum(leaf.nbytes for leaf in leaves)

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    if Path(target.name).suffixes[-2] == ".npy":
        with _collecting(damage, leaves[0]):
            _write_array(target, values[0], dtypes[0], advance)
        return
    folder = Path(target.name).parent
    with zipfile.ZipFile(target, "w", allowZip64=True) as archive:
        for leaf, value, dtype in zip(leaves, values, dtypes, strict=True):
            with _collecting(damage, leaf), tempfile.TemporaryFile(dir=folder) as whole:
                _write_array(cast(BinaryIO, whole), value, dtype, advance)
                whole.seek(0)  # only whole arrays get into the archive
                with archive.open(f"{leaf.name}.npy", "w", force_zip64=True) as member:
                    shutil.copyfileobj(whole, member)


@contextlib.contextmanager
def _collecting(damage: dict[str, CorruptionError], leaf: Leaf) -> Generator[None]:
    """Record that a leaf is damaged instead of raising it."""
    try:
        yield
    except CorruptionError as error:
        damage[leaf.name] = error


def _write_array(
    target: BinaryIO, value: object, dtype: DType, advance: Callable[[int], object]
) -> None:
    """Write an array as consecutive slabs of whole chunks along its first dimension."""
    if not isinstance(value, LazyArray):
        np.lib.format.write_array(target, np.asarray(as_host(value)).astype(dtype))
        return
    shape = value.shape
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(target, header)
    rows = value.leaf.read.layout.chunk_shape[0] if shape else 1
    starts = range(0, shape[0], max(1, rows)) if shape else [None]
    for start in starts:
        slab = value[...] if start is None else value[start : start + rows]
        host = cast(HostArray, np.asarray(slab))
        target.write(np.ascontiguousarray(host, dtype).tobytes())
        advance(host.nbytes)
