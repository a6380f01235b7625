"""The interface of other programs' formats, and their detection.

A format recognizes a path by signs and opens it as a `StoredTree`. Recognition imports nothing that
reads arrays.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.plugins import Plugin, PluginRegistry, choose
from orbit_ckpt._src.runtime.checks import as_flag, show
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.other_files import recognize

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.stored_tree import StoredTree
    from orbit_ckpt._src.formats.writing import WriteRequest


ORBAX = "orbax"
"""What `detect_format` calls Orbax's format, which is ours."""

_PACKAGE = __name__.rpartition(".")[0]


@runtime_checkable
class Format(Protocol):
    """Another program's format that can be read.

    Attributes:
        name: Its name in messages.
        extra: The package that reading it needs, as `pip install` takes it; None for none.
    """

    name: str
    extra: str | None

    def sniff(self, path: Path) -> str | None:
        """Return why a path is not of this format, None if it seems to be.

        Examines names and first bytes only, and never raises because of what it finds.

        Args:
            path: A file or directory, which exists.
        """
        ...

    def open(self, path: Path) -> StoredTree:
        """Open what `sniff` accepted; reads no arrays.

        Raises:
            FormatError: It is damaged, or of a version that is not known.
            MissingPackageError: `extra` is not installed.
        """
        ...


@runtime_checkable
class LinkedFiles(Protocol):
    """Optional addition to a `Format`: its files may be links to files elsewhere.

    Attributes:
        allows_linked_files: Whether a file of a checkpoint may be a link to any regular file.
    """

    allows_linked_files: bool


def allows_linked_files(known: Format | None) -> bool:
    """Return whether links in a checkpoint may lead out of it; not in our own format."""
    return isinstance(known, LinkedFiles) and known.allows_linked_files


@runtime_checkable
class WholeReader(Protocol):
    """Optional addition to a `Format`: reads a tree in one go if leaf by leaf is slow."""

    def open_whole(self, path: Path) -> StoredTree:
        """Open what `sniff` accepted, perhaps as a tree with `read_whole`.

        Raises:
            FormatError: It is damaged, or of a version that is not known.
        """
        ...


class ForeignStep(Struct, frozen=True):
    """One checkpoint of another program's run.

    Attributes:
        step: Its number; Flax allows fractions.
        path: Its path.
        time: Time of writing, in seconds since the epoch; None in a store, which does not report
            it.
        is_pinned: Whether the run never deletes it.
        is_temporary: Whether the run deletes it once it has saved the next one.
    """

    step: float
    path: Path
    time: float | None
    is_pinned: bool = False
    is_temporary: bool = False


@runtime_checkable
class StepRecognizer(Protocol):
    """Optional addition to a `Format` of a program that writes runs."""

    def step_at(self, path: Path) -> ForeignStep | None:
        """Return the finished step of a run at a path; None if there is none of this format.

        Looks at names and first bytes only, and never raises because of what it finds.

        Args:
            path: A file or directory, which exists.
        """
        ...


@runtime_checkable
class WritableFormat(Protocol):
    """Optional addition to a `Format` that `convert` can write.

    Attributes:
        writes_as: What `convert(to=...)` and `orbit-ckpt convert --to` call it.
    """

    writes_as: str

    def write(self, request: WriteRequest) -> None:
        """Write a tree; what appears at its path is complete.

        Args:
            request: The tree, where to write it, and how much memory to use.

        Raises:
            CheckpointExistsError: The path exists, and is not to be replaced.
            UnsupportedLeafError: The format cannot hold some leaves; nothing was written.
            ValueError: The format has no such option.
        """
        ...


@runtime_checkable
class StoreWriter(Protocol):
    """Optional addition to a `WritableFormat`: it writes into object stores too.

    Attributes:
        writes_to_stores: Whether it does.
    """

    writes_to_stores: bool


@runtime_checkable
class DistributedWriter(Protocol):
    """Optional addition to a `WritableFormat`: workers of an executor read and write arrays.

    Attributes:
        uses_executor: Whether `write` gives its arrays to `WriteRequest.executor`.
    """

    uses_executor: bool


class BuiltIn(Struct, frozen=True):
    """A format of another program that this package reads.

    Attributes:
        title: Its name in messages.
        has_runs: Whether its program writes runs of steps, see `StepRecognizer`.
    """

    title: str
    has_runs: bool = False


BUILT_IN: Mapping[str, BuiltIn] = {
    "eformer": BuiltIn("eFormer", has_runs=True),
    "safetensors": BuiltIn("safetensors"),
    "t5x": BuiltIn("T5X", has_runs=True),
    "tf_checkpoint": BuiltIn("TensorFlow"),
    "levanter": BuiltIn("Levanter", has_runs=True),
    "flax_msgpack": BuiltIn("flax msgpack", has_runs=True),
}
"""The folders of this package whose `read` has a `FORMAT`; those with the surest signs first."""


def built_in_format(name: str) -> Format:
    """Return the format of a folder of this package."""
    module = importlib.import_module(f"orbit_ckpt._src.formats.{name}.read")
    return module.FORMAT


def built_in_formats(*, has_runs: bool = False) -> Iterator[Format]:
    """Yield the formats of other programs that this package reads.

    Args:
        has_runs: Whether to omit those of programs that write no runs.
    """
    for name, known in BUILT_IN.items():
        if known.has_runs >= has_runs:
            yield built_in_format(name)


_registered: dict[str, Format] = {}


def register_format(known: Format, *, override: bool = False) -> None:
    """Register a format in this program; it is recognized before all others, plug-ins included.

    Like plug-ins, it is asked about paths on a local file system only.

    Args:
        known: The format. With the methods of `WritableFormat` it is one to convert to.
        override: Whether to replace a registered format of the same name.

    Raises:
        TypeError: It is no format, such as the class of one.
        ValueError: One of its name is registered and `override` is not set.
    """
    if isinstance(known, type) or not isinstance(known, Format):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
        raise TypeError(
            f"known must be a format, found {show(known)}. Give an object with name, extra, sniff "
            "and open, see orbit_ckpt.formats.Format."
        )
    if known.name in _registered and not as_flag("override", override):
        raise ValueError(
            f"A format named {known.name!r} is registered already: {_registered[known.name]!r}. "
            "Pass override=True to replace it."
        )
    _registered[known.name] = known


def writable_formats() -> Mapping[str, WritableFormat]:
    """Return the formats that `convert` can write by name, those of plug-ins included.

    Raises:
        PluginConflictError: Several plug-ins have one of the same name, and none is preferred.
    """
    claims: dict[str, list[Plugin[Format]]] = {}
    for plugin in PLUGINS.usable():
        if isinstance(plugin.loaded, WritableFormat):
            claims.setdefault(plugin.loaded.writes_as, []).append(plugin)
    plugins = [
        choose(found, f"the format to write {name!r}").get() for name, found in claims.items()
    ]
    found = [*plugins, *built_in_formats(), *_registered.values()]
    return {known.writes_as: known for known in found if isinstance(known, WritableFormat)}


def find_format(path: Path) -> tuple[Format | None, str]:
    """Return the other program's format of a path; if None, text that explains why not.

    For files known to be something else only registered formats and plug-ins explain what is
    missing. A plug-in that fails is skipped with a warning.

    Raises:
        PluginConflictError: Several plug-ins recognize the path, and none is preferred.
        StorageError: The path cannot be read.
    """
    if not (path.is_file() or path.is_dir()):  # reading a pipe would block forever
        return None, ""
    lacks: list[str] = []
    is_local = directory_of(path).has_local_files
    registered = _registered.values() if is_local else ()
    for known in (*registered, *built_in_formats()):
        try:
            problem = known.sniff(path)
        except OSError as error:
            raise StorageError(
                f"{path}: reading failed: {error}. Check that it can be read."
            ) from error
        if problem is None:
            return known, ""
        lacks.append(_lack(known, problem))
    if recognize(path) is not None:  # the formats' explanations would only obscure it
        lacks = []
    found = _plugins_for(path, lacks) if is_local else []
    if found:
        return choose(found, str(path)).get(), ""
    if lacks and not is_local:
        lacks.append(
            "\n  Formats of plug-ins are read from a local file system only; copy the "
            "checkpoint there."
        )
    return None, "\nOther formats:" + "".join(lacks) if lacks else ""


def _plugins_for(path: Path, lacks: list[str]) -> list[Plugin[Format]]:
    """Return the plug-ins that recognize a path; add what the others lack."""
    accepting: list[Plugin[Format]] = []
    for plugin in PLUGINS.usable():
        known = plugin.get()
        try:
            problem = known.sniff(path)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            plugin.warn(error)
            lacks.append(
                f"\n  {known.name}: {plugin.title} failed: {type(error).__name__}: {error}"
            )
            continue
        if problem is None:
            accepting.append(plugin)
        else:
            lacks.append(_lack(known, problem))
    return accepting


def _lack(known: Format, problem: str) -> str:
    extra = f" (needs `pip install '{known.extra}'`)" if known.extra else ""
    return f"\n  {known.name}{extra}: {problem}"


def _prepare_plugin(plugin: object) -> Format:
    """Return the format that a plug-in provides.

    Raises:
        TypeError: It provides something else.
    """
    found: object = plugin() if isinstance(plugin, type) else plugin
    if not isinstance(found, Format):
        raise TypeError(f"{found!r} does not have the methods of a Format")
    return found


PLUGINS = PluginRegistry("orbit_ckpt.formats", _prepare_plugin)
"""Formats of installed packages."""


def format_name(known: Format | None) -> str:
    """Return the name of a format's folder here, or the plug-in's name for it."""
    if known is None:
        return ORBAX
    folder, _, module = type(known).__module__.removeprefix(f"{_PACKAGE}.").partition(".")
    return folder if folder in BUILT_IN and module else known.name
