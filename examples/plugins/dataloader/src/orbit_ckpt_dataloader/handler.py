"""The item handler: one JSON file per process."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax

from orbit_ckpt.args import CheckpointArgs, register_with_handler
from orbit_ckpt.errors import CheckpointNotFoundError, FormatError, ProcessCountError
from orbit_ckpt.handlers import CheckpointHandler
from orbit_ckpt_dataloader.loader import DataIterator, Resplit, Resplittable

_VERSION = 1
_FILE = re.compile(r"process_(\d+)-of-(\d+)\.json")


class DataHandler(CheckpointHandler):
    """Saves the state of a data iterator on every process.

    Args:
        process: The index of the process, by default that of JAX.
        count: The number of processes, by default that of JAX.
    """

    def __init__(self, *, process: int | None = None, count: int | None = None) -> None:
        self._given = process, count

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; it must never change."""
        return "orbit_ckpt_dataloader.DataHandler"

    def save(self, directory: Path, args: DataSave) -> None:
        """Write the state of this process; the iterator may continue when this returns.

        Raises:
            TypeError: The iterator has no state, or not one that JSON holds.
        """
        process, count = self._process()
        state = _state_of(args.iterator)
        type_ = f"{type(args.iterator).__module__}.{type(args.iterator).__qualname__}"
        is_text = isinstance(state, bytes)
        try:
            known = state.decode() if isinstance(state, bytes) else state
            text = json.dumps(
                {"version": _VERSION, "type": type_, "is_text": is_text, "state": known}
            )
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{directory.name}: get_state() of {type_} returned a state that is neither a JSON "
                f"value nor bytes of text: {error}"
            ) from error
        (directory / _name(process, count)).write_text(text)

    def restore(self, directory: Path, args: DataRestore | None = None) -> Any:
        """Continue an iterator from the state of this process.

        Returns:
            The iterator; without one, the state.

        Raises:
            CheckpointNotFoundError: The directory holds no state.
            FormatError: States are missing, or of another version.
            ProcessCountError: Another number of processes saved, and nothing says how to divide
                their states.
        """
        args = args or DataRestore()
        state = self._state(directory, args)
        if args.iterator is None:
            return state
        args.iterator.set_state(state)
        return args.iterator

    def _state(self, directory: Path, args: DataRestore) -> object:
        """Return the state of this process, made of all states if another number saved."""
        process, count = self._process()
        saved = _count_saved(directory)
        if saved == count:
            return _read(directory, process, count)
        resplit = args.resplit
        if resplit is None and isinstance(args.iterator, Resplittable):
            resplit = args.iterator.resplit
        if resplit is None:
            raise ProcessCountError(
                f"{directory}: {saved} processes saved their states, and now there are {count}. "
                f"Restore with {saved}, or give DataRestore a resplit function, such as "
                "same_steps or same_examples.",
                saved=saved,
                current=count,
            )
        return resplit([_read(directory, i, saved) for i in range(saved)], process, count)

    def finalize(self, directory: Path) -> None:
        """Do nothing; called after all processes have written."""

    def close(self) -> None:
        """Do nothing; the handler holds no resources."""

    def _process(self) -> tuple[int, int]:
        process, count = self._given
        return (
            jax.process_index() if process is None else process,
            jax.process_count() if count is None else count,
        )


@register_with_handler(DataHandler, for_save=True)
@dataclass
class DataSave(CheckpointArgs):
    """Arguments for saving.

    Attributes:
        iterator: The iterator of this process.
    """

    iterator: DataIterator


@register_with_handler(DataHandler, for_restore=True)
@dataclass
class DataRestore(CheckpointArgs):
    """Arguments for restoring.

    Attributes:
        iterator: The iterator to continue; None to return the state.
        resplit: Called as `resplit(states, process, count)` if another number of processes saved;
            None for the method of the iterator, if it has one.
    """

    iterator: DataIterator | None = None
    resplit: Resplit | None = None


def _state_of(iterator: DataIterator) -> object:
    for name in ("get_state", "set_state"):
        if not callable(getattr(iterator, name, None)) or isinstance(iterator, type):
            found = f"{type(iterator).__module__}.{type(iterator).__qualname__}"
            raise TypeError(f"a data iterator has get_state() and set_state(state), found {found}")
    return iterator.get_state()


def _name(process: int, count: int) -> str:
    return f"process_{process}-of-{count}.json"


def _count_saved(directory: Path) -> int:
    """Return how many processes saved, all of whose states must exist."""
    found: dict[int, set[int]] = {}
    for path in directory.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is not None:
            found.setdefault(int(match[2]), set()).add(int(match[1]))
    if not found:
        raise CheckpointNotFoundError(f"{directory}: no state of a data iterator is saved here")
    shown = {count: sorted(processes) for count, processes in sorted(found.items())}
    for count, processes in shown.items():
        if len(shown) > 1 or processes != list(range(count)):
            raise FormatError(
                f"{directory}: expected the states of all processes of one save, found those of "
                f"{_describe(shown)}. Copy the checkpoint again."
            )
    return next(iter(shown))


def _describe(shown: Mapping[int, Sequence[int]]) -> str:
    return " and ".join(f"{len(found)} of {count} processes" for count, found in shown.items())


def _read(directory: Path, process: int, count: int) -> object:
    path = directory / _name(process, count)
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}") from error
    fields = cast(dict[str, Any], document) if isinstance(document, dict) else {}
    if fields.get("version") != _VERSION or "state" not in fields:
        raise FormatError(
            f"{path} has version {fields.get('version')}, expected {_VERSION}. Update "
            "orbit-ckpt-dataloader."
        )
    return fields["state"].encode() if fields.get("is_text") else fields["state"]
