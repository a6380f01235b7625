"""Stateful objects, such as data iterators, as items.

Every process saves the state of its own object. JSON states use grain's file names
(`process_0-of-1.json`), so that this handler and grain's restore each other's. Nothing is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import jax
from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.errors import (
    CheckpointNotFoundError,
    FormatError,
    ItemError,
    ProcessCountError,
    UnsupportedLeafError,
)
from orbit_ckpt._src.items.arguments import CheckpointArgs
from orbit_ckpt._src.items.base import item_name
from orbit_ckpt._src.items.phases import ItemHandler
from orbit_ckpt._src.items.pytree import PyTreeHandler, PyTreeMetadataOptions, PyTreeSaveArgs
from orbit_ckpt._src.metadata.codec import decode_json, decode_versioned, encode_json
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.process import Process
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.integrity import CheckedDirectory, open_checked, write_manifest
from orbit_ckpt._src.storage.layout import (
    MANIFEST,
    STATE_BYTES,
    STATE_JSON,
    STATE_RECORD,
    STATE_TREE,
    process_of_state,
    state_stem,
)
from orbit_ckpt._src.storage.path import PathLike, describe_directory, resolve_path

RECORD_VERSION = 1
"""Version of the form of a state's record."""


class StateKind(StrEnum):
    """How a state is stored, and its original type.

    Attributes:
        JSON: A JSON value, as JSON.
        JSON_TEXT: Bytes that are valid JSON, in the same file.
        BYTES: Other bytes.
        TREE: A pytree.
    """

    JSON = "json"
    JSON_TEXT = "json_text"
    BYTES = "bytes"
    TREE = "tree"


class StateRecord(Struct, frozen=True):
    """`process_<i>-of-<n>.kind`: describes the state of one process.

    Attributes:
        kind: How it is stored.
        type: Class of the object, for human readers.
        format_version: Version of this record's format.
    """

    kind: StateKind
    type: str
    format_version: int = RECORD_VERSION

    @classmethod
    def decode(cls, data: bytes, where: str) -> StateRecord:
        """Decode the JSON form.

        Raises:
            FormatError: A field is missing or has a wrong type, or the version is newer.
        """
        return decode_versioned(data, cls, where, newest=RECORD_VERSION)


Resplit = Callable[[Sequence[Any], int, int], object]
"""Makes the state of one process from those of all that saved: `(states, process, count)`."""

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))

_JSON_SCALARS = frozenset({type(None), bool, int, float, str})

_FILE_KINDS = {
    StateKind.JSON: STATE_JSON,
    StateKind.JSON_TEXT: STATE_JSON,
    StateKind.BYTES: STATE_BYTES,
}


@dataclass
class StatefulSaveArgs(CheckpointArgs):
    """An object whose state to save.

    Attributes:
        item: The object.
    """

    item: object


@dataclass
class StatefulRestoreArgs(CheckpointArgs):
    """The object to restore, and options.

    Attributes:
        item: The object that receives the state and is returned. None returns the state itself.
        resplit: Called as `resplit(states, process_index, process_count)` if another number of
            processes saved: receives the states of all processes, in order, and this process's
            index and the process count. Returns the state for this process.
    """

    item: object = None
    resplit: Resplit | None = None


class StatefulHandler(
    ItemHandler[StatefulSaveArgs], save_args=StatefulSaveArgs, restore_args=StatefulRestoreArgs
):
    """Saves and restores the state of an object, one state per process.

    The object has `state_dict()` and `load_state_dict(state)`, or `get_state()` and
    `set_state(state)`. A state is bytes, a JSON value, or a pytree that `PyTreeHandler` can save.
    """

    def __init__(
        self, *, process_index: int | None = None, process_count: int | None = None
    ) -> None:
        """Make a handler.

        Args:
            process_index: The process whose state to save and restore; JAX's process by default.
            process_count: Number of saving processes; given together with `process_index`.

        Raises:
            ValueError: Only one of the two is given, or the index is out of range.
        """
        if (process_index is None) != (process_count is None):
            raise ValueError("Give process_index and process_count together.")
        if process_index is None or process_count is None:
            self._given: tuple[int, int] | None = None
        elif 0 <= process_index < process_count:
            self._given = process_index, process_count
        else:
            raise ValueError(f"There is no process {process_index} among {process_count}.")
        options = PyTreeMetadataOptions(support_rich_types=True)
        # each state is a separate tree, of which other processes save no part
        self._trees = PyTreeHandler(pytree_metadata_options=options, process=Process())

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; Orbax has no equivalent."""
        return "orbit_ckpt.items.stateful.StatefulHandler"

    @override
    async def stage(self, directory: Path, args: StatefulSaveArgs, *, copy: bool) -> Commit:
        """Copy the object's state; the object may then continue.

        Raises:
            TypeError: The object has no state, or not one that can be written.
            ItemError: The object raised an error.
            UnsupportedLeafError: Parts of the state cannot be written.
        """
        name = item_name(directory)
        methods = _methods_of(args.item, name)
        with _errors_of(name, methods.get):
            state = methods.get()
        stem = state_stem(*self._process())
        record = StateRecord(kind=_kind_of(state, name), type=_type_of(args.item))
        if record.kind is StateKind.TREE:
            # always a copy: an iterator's threads may change a state after returning it
            folder = directory / f"{stem}{STATE_TREE}"
            commit = await self._stage_tree(folder, state, methods.get, name)
        else:
            file = directory / f"{stem}{_FILE_KINDS[record.kind]}"
            data = encode_user_json(state) if record.kind is StateKind.JSON else bytes(state)
            commit = Commit(lambda: asyncio.to_thread(write_file, file, data))

        async def write() -> None:
            await commit.run()
            # belongs to this process only, so that no other one is involved
            await asyncio.to_thread(commit.finalize)
            text = encode_json(record)
            await asyncio.to_thread(write_file, directory / f"{stem}{STATE_RECORD}", text)

        return Commit(write, lambda: write_manifest(directory), lambda: commit.progress)

    @override
    def restore(
        self,
        directory: PathLike,
        item: object = None,
        args: StatefulRestoreArgs | None = None,
    ) -> Any:  # the object, or its state
        """Read the state of this process and put it into an object.

        Args:
            directory: Where the states are.
            item: The object, if `args` is not given.
            args: The object, and how to split the states of another number of processes.

        Returns:
            The object, or the state itself if no object is given.

        Raises:
            CheckpointNotFoundError: The directory holds no state.
            ProcessCountError: Another number of processes saved, and `resplit` is not given.
            FormatError: The record of a state is not understood.
            CorruptionError: A file is damaged.
            ItemError: The object raised an error.
        """
        args = args or StatefulRestoreArgs(item)
        path = resolve_path(directory)
        name = item_name(path)
        methods = None if args.item is None else _methods_of(args.item, name)
        state = self._read_states(path, args, methods)
        if methods is None:
            return state
        with _errors_of(name, methods.set):
            methods.set(state)
        return args.item

    def _process(self) -> tuple[int, int]:
        return self._given or (jax.process_index(), jax.process_count())

    async def _stage_tree(
        self, folder: Path, state: object, source: Callable[..., object], name: str
    ) -> Commit:
        try:
            commit = await self._trees.stage(folder, PyTreeSaveArgs(state), copy=True)
        except UnsupportedLeafError as error:
            error.add_note(f"{name}: this is what {_describe(source)} returned.")
            raise

        async def write() -> None:
            await asyncio.to_thread(folder.mkdir)
            await commit.run()

        return Commit(write, commit.finalize, lambda: commit.progress)

    def _read_states(
        self, path: Path, args: StatefulRestoreArgs, methods: _Methods | None
    ) -> object:
        """Return the state of this process, split from all states if another number saved."""
        checked = open_checked(path)
        saved = _count_saved(checked)
        process, count = self._process()
        if saved == count:
            return self._read_state(checked, process, count, methods)
        if args.resplit is None:
            raise ProcessCountError(
                f"{path}: saved by {saved} processes, of which each had a state of its own; now "
                f"there are {count}. Restore with {saved}, or give StatefulRestore a resplit "
                "function that makes the state of a process from all that were saved.",
                saved=saved,
                current=count,
            )
        states = [self._read_state(checked, i, saved, methods) for i in range(saved)]
        with _errors_of(item_name(path), args.resplit):
            return args.resplit(states, process, count)

    def _read_state(
        self, checked: CheckedDirectory, process: int, count: int, methods: _Methods | None
    ) -> object:
        stem = state_stem(process, count)
        name = f"{stem}{STATE_RECORD}"
        data = checked.read_bytes(name)
        if data is not None:
            kind = StateRecord.decode(data, str(checked.path / name)).kind
        else:
            kind = _kind_now(methods, item_name(checked.path))  # grain records no kind
        if kind is StateKind.TREE:
            checked.verify(f"{stem}{STATE_TREE}/{MANIFEST}")
            return self._trees.restore(checked.inner(f"{stem}{STATE_TREE}"))
        name = f"{stem}{_FILE_KINDS[kind]}"
        data = checked.read_bytes(name)
        if data is None:
            raise CheckpointNotFoundError(
                f"{checked.path}: there is no state of process {process} of {count}: no file "
                f"{name!r} ({describe_directory(checked.path)})."
            )
        is_json = kind is StateKind.JSON
        return decode_json(data, object, str(checked.path / name)) if is_json else data


class _Methods(Struct, frozen=True):
    """The methods that get and set an object's state."""

    get: Callable[[], Any]
    set: Callable[[Any], object]


def _methods_of(item: object, name: str) -> _Methods:
    for getter, setter in _METHODS:
        get, put = getattr(item, getter, None), getattr(item, setter, None)
        if callable(get) and callable(put) and not isinstance(item, type):
            return _Methods(get, put)
    what = f"the class {item.__qualname__}" if isinstance(item, type) else _type_of(item)
    pairs = ", or ".join(f"{getter}() and {setter}(state)" for getter, setter in _METHODS)
    raise TypeError(f"{name}: expected an object with {pairs}; found {what}")


def _kind_of(state: object, name: str) -> StateKind:
    if isinstance(state, bytes | bytearray | memoryview):
        data = bytes(cast(bytes, state))
        return StateKind.JSON_TEXT if _is_json_text(data) else StateKind.BYTES
    try:
        return StateKind.JSON if _is_json(state) else StateKind.TREE
    except RecursionError as error:
        raise TypeError(
            f"{name}: the state is nested too deep to be written, or holds itself"
        ) from error


def _kind_now(methods: _Methods | None, name: str) -> StateKind:
    """Return the kind of a state without a record: that of the object's current state."""
    if methods is None:
        return StateKind.JSON
    with _errors_of(name, methods.get):
        is_text = isinstance(methods.get(), bytes)
    return StateKind.JSON_TEXT if is_text else StateKind.JSON


def _is_json(value: object) -> bool:
    """Return whether a value survives JSON unchanged; an `OrderedDict` becomes a dict."""
    kind = type(value)
    if kind is list:
        return all(map(_is_json, cast(list[object], value)))
    if kind is dict or kind is OrderedDict:
        fields = cast(dict[object, object], value)
        return all(type(key) is str and _is_json(field) for key, field in fields.items())
    return kind in _JSON_SCALARS


def _is_json_text(data: bytes) -> bool:
    """Return whether bytes can go into a file that other programs read as JSON."""
    try:
        data.decode()
        decode_json(data, object, "")
    except (UnicodeDecodeError, FormatError):
        return False
    return True


def _count_saved(checked: CheckedDirectory) -> int:
    """Return the number of processes that saved a state."""
    recorded = checked.manifest.files if checked.manifest else ()
    names = {entry.name for entry in checked.path.iterdir()}
    names.update(path.partition("/")[0] for path in recorded)
    counts = {found[1] for name in names if (found := process_of_state(name)) is not None}
    if not counts:
        raise CheckpointNotFoundError(
            f"No state of an object at {checked.path}: there are no files "
            f"{state_stem(0, 1)!r}.* ({describe_directory(checked.path)})."
        )
    if len(counts) > 1:
        raise FormatError(
            f"{checked.path}: expected the states of one number of processes, found those of "
            f"{sorted(counts)}. Remove the files that do not belong there."
        )
    return counts.pop()


@contextlib.contextmanager
def _errors_of(name: str, function: Callable[..., object]) -> Generator[None]:
    """Convert an exception of user code to an error that names the item."""
    try:
        yield
    except Exception as error:  # a user's object may raise anything
        raise ItemError(
            f"{name}: {_describe(function)} raised {type(error).__name__}: {error}", item=name
        ) from error


def _describe(function: Callable[..., object]) -> str:
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", repr(function))
    return f"{name}()" if owner is None else f"{name}() of {_type_of(owner)}"


def _type_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
