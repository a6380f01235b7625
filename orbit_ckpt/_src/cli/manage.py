"""Commands that delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from orbit_ckpt._src.cli.keeping import Keeping
from orbit_ckpt._src.cli.output import confirm, echo, print_json, stored_bytes
from orbit_ckpt._src.cli.runs import AnyStepName, ListedStep, list_run
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import select_step
from orbit_ckpt._src.errors import CheckpointNotFoundError
from orbit_ckpt._src.formats.locate import Kind, locate
from orbit_ckpt._src.formats.runs import is_one_checkpoint
from orbit_ckpt._src.manager.garbage_collection import StepDeleter
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.layout import (
    PINNED,
    STEP_METADATA,
    number_in,
    partial_of,
)
from orbit_ckpt._src.storage.partial import remove_path, try_lock, unlock
from orbit_ckpt._src.storage.path import describe_directory, resolve_path, storage_errors
from orbit_ckpt._src.text import human_bytes, shorten_list

_ADVICE = "Check the permissions there."


def rm(path: str, yes: bool, force: bool, as_json: bool) -> None:
    """Delete one checkpoint, or the remains of a save or conversion that died."""
    directory = select_step(path)
    place = directory_of(directory)
    if place.has_local_files and partial_of(directory.name) is not None:
        _remove_partial(directory, yes=yes, as_json=as_json)
        return
    if not directory.is_dir():
        raise CheckpointNotFoundError(
            f"No directory at {directory}: {describe_directory(directory)}. Give the directory of "
            "a checkpoint; files are not deleted."
        )
    is_left = place.is_unfinished()
    if not is_left:
        _check_removable(directory)
    if (directory / PINNED).exists() and not force:
        raise ValueError(f"{directory} is pinned; delete the file {PINNED} in it, or pass --force.")
    nbytes = stored_bytes(directory)
    confirm(f"Delete {directory}{_size(nbytes, ' ({})')}?", yes=yes)
    deleter = StepDeleter(directory.parent, AnyStepName())
    with storage_errors(directory, "deleting", _ADVICE):
        aside = deleter.tombstone(directory)
        if aside is None and is_left:  # in a store it has no marker to delete
            aside = directory
        if aside is not None:
            deleter.remove(aside, directory)
    if as_json:
        print_json("rm", path=directory, bytes=nbytes)
    else:
        echo(f"deleted {directory}{_size(nbytes)}")


def _remove_partial(path: Path, *, yes: bool, as_json: bool) -> None:
    """Delete the remains of a conversion.

    Raises:
        CheckpointNotFoundError: There are none.
        ValueError: A process is still writing it.
    """
    if not path.exists():
        raise CheckpointNotFoundError(f"{path}: nothing is there. Check its name with `ls`.")
    lock = try_lock(path)
    if lock is None:
        raise ValueError(f"{path} is being written by another process; wait until that has ended.")
    try:
        nbytes = stored_bytes(path) if path.is_dir() else path.stat().st_size
        confirm(f"Delete {path}{_size(nbytes, ' ({})')}?", yes=yes)
        remove_path(path)
    finally:
        unlock(lock)
    if as_json:
        print_json("rm", path=path, bytes=nbytes)
    else:
        echo(f"deleted {path}{_size(nbytes)}")


def _check_removable(directory: Path) -> None:
    """Check that a directory is one checkpoint and nothing else.

    Raises:
        CheckpointNotFoundError: It is not a checkpoint.
        ValueError: It is a run, an item, or a directory that may hold other files too.
    """
    located = locate(directory)
    located.check()
    if located.kind is Kind.RUN:
        raise ValueError(f"{directory} is a run; give one of its steps, or use `prune`.")
    if directory_of(directory).has_markers or (directory / STEP_METADATA).exists():
        return
    around = locate(directory.parent)
    is_step = any(step.path == directory and step.reader for step in around.run.steps)
    is_item = (directory.parent / STEP_METADATA).exists()
    if is_item or (around.kind is Kind.FOREIGN and not is_step):
        raise ValueError(f"{directory} is a part of the checkpoint {directory.parent}; give that.")
    is_step = is_step or (located.reader is None and number_in(directory.name) is not None)
    if not (is_step or is_one_checkpoint(directory)):
        raise ValueError(
            f"{directory} has a checkpoint in it, but perhaps other things too: "
            f"{describe_directory(directory)}. If you mean all of it, delete it yourself."
        )


def prune(  # noqa: PLR0913, PLR0917 - options of a command
    path: str,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: int | None,
    metric: str | None,
    lowest: bool | None,
    policy: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete the steps of a run that no rule keeps."""
    keeping = Keeping(keep_last, keep_every, keep_best, metric, lowest, policy)
    if not keeping.is_given:
        raise ValueError(
            "No rule is given; pass --keep-last, --keep-every, --keep-best or --policy."
        )
    root = resolve_path(path)
    entries = list_run(locate(root))
    if entries is None:
        raise ValueError(f"{root} is one checkpoint; give the directory with the steps of a run.")
    _check_one_run(root, entries)
    paths = {entry.info.step: entry.path for entry in entries}
    kept = keeping.rules([entry.info for entry in entries])
    sizes = {entry.info.step: entry.stored_bytes() for entry in entries}
    going = [step for step, rules in kept.items() if not rules]
    freed = _total(sizes[step] for step in going)
    if going and not dry_run:
        confirm(f"Delete {len(going)} steps of {root}{_size(freed, ' ({})')}?", yes=yes)
        going = _delete(StepDeleter(root, AnyStepName()), {step: paths[step] for step in going})
        freed = _total(sizes[step] for step in going)
    gone = frozenset(going)
    if as_json:
        steps = [
            {"step": step, "bytes": sizes[step], "kept_by": rules, "deleted": step in gone}
            for step, rules in kept.items()
        ]
        print_json("prune", path=root, dry_run=dry_run, steps=steps, bytes_freed=freed)
        return
    verb = "would be deleted" if dry_run else "deleted"
    rows = [
        [str(step), human_bytes(sizes[step]), verb if step in gone else ", ".join(rules)]
        for step, rules in kept.items()
    ]
    print_table(["step", "size", "kept by"], rows, right={"step", "size"})
    echo(f"{len(going)} of {len(kept)} steps {verb}{_size(freed)}")


def _total(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of sizes, None if one is unknown."""
    found = list(sizes)
    return None if None in found else sum(size or 0 for size in found)


def _size(nbytes: int | None, form: str = ", {}") -> str:
    return "" if nbytes is None else form.format(human_bytes(nbytes))


def _check_one_run(root: Path, entries: Sequence[ListedStep]) -> None:
    """Check that all steps in a directory belong to one run.

    Raises:
        ValueError: They may belong to several, so that the newest step of one would be deleted.
    """
    steps = {entry.info.step for entry in entries}
    prefixes = {e.path.name.rpartition(str(e.info.step))[0].rstrip("0") for e in entries}
    if len(steps) < len(entries) or len(prefixes) > 1:
        names = [entry.path.name for entry in entries]
        raise ValueError(
            f"{root} may hold several runs, for its steps are not named alike: "
            f"{shorten_list(names, 8)}. Move those of the others away, or delete steps with `rm`."
        )


def _delete(deleter: StepDeleter, steps: Mapping[int, Path]) -> list[int]:
    """Delete steps; return the deleted ones, since another process may have pinned some."""
    deleted: list[int] = []
    for step, directory in steps.items():
        if (directory / PINNED).exists():
            continue
        with storage_errors(directory, "deleting", _ADVICE):
            aside = deleter.tombstone(directory)
            if aside is not None:
                deleter.remove(aside, directory)
        deleted.append(step)
    return deleted
