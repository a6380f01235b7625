"""Copy a checkpoint."""

from __future__ import annotations

from orbit_ckpt._src.checkpointer.copying import copy_checkpoint
from orbit_ckpt._src.cli.output import echo, human_bytes, print_json
from orbit_ckpt._src.cli.progress import progress_bar
from orbit_ckpt._src.cli.runs import list_run
from orbit_ckpt._src.errors import CheckpointExistsError
from orbit_ckpt._src.formats.detect import foreign_format
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import StorePath


def cp(source: str, destination: str, overwrite: bool, check: bool, as_json: bool) -> None:
    """Copy a checkpoint."""
    start, end = resolve_path(source), resolve_path(destination)
    foreign = None if isinstance(start, StorePath) else foreign_format(start)
    if (foreign is not None or start.is_dir()) and list_run(start, foreign) is not None:
        raise ValueError(f"{start} is a run; give one of its steps.")
    if not overwrite and not isinstance(end, StorePath) and end.exists():
        raise CheckpointExistsError(f"{end} exists already. Pass --overwrite, or another path.")
    with progress_bar("Copying") as told:
        nbytes = copy_checkpoint(start, end, overwrite=overwrite, check=check, progress=told)
    if as_json:
        print_json("cp", source=start, destination=end, bytes=nbytes, verified=check)
    else:
        echo(f"{start} -> {end}: {human_bytes(nbytes)}{', verified' if check else ''}")
