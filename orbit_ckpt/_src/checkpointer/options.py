"""Options of checkpointers, named as in Orbax."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from orbit_ckpt._src.arrays.kept_memory import KeptMemory
from orbit_ckpt._src.arrays.snapshot import SnapshotMode, Snapshots
from orbit_ckpt._src.runtime.checks import (
    check_callable,
    check_choice,
    check_int,
    check_methods,
    check_number,
    check_steps,
    check_type,
)
from orbit_ckpt._src.runtime.jax_process_group import default_group
from orbit_ckpt._src.runtime.process import ProcessGroup, reset_in_child
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.text import warn_set


@dataclass(frozen=True)
class FileOptions:
    """Properties of the files written.

    Attributes:
        path_permission_mode: Permission bits of a checkpoint's directory, None for the default.
        skip_sync_file_validations: Ignored.
    """

    path_permission_mode: int | None = None
    skip_sync_file_validations: bool = False

    def __post_init__(self) -> None:
        check_int("path_permission_mode", self.path_permission_mode, least=0, optional=True)
        why = "a save always checks that it destroys no checkpoint, in one request"
        options = {"skip_sync_file_validations": (self.skip_sync_file_validations, False, why)}
        warn_set("FileOptions", options)


@dataclass(frozen=True)
class AtomicityOptions:
    """How a checkpoint becomes visible.

    Attributes:
        mode: By renaming a temporary directory, or by a marker file.
        allow_legacy_atomic_rename: Whether marker mode also restores checkpoints without a marker,
            assuming that they were committed by renaming.
    """

    mode: AtomicityMode = AtomicityMode.AUTO
    allow_legacy_atomic_rename: bool = False

    def __post_init__(self) -> None:
        choices = f"Give AtomicityMode.{', AtomicityMode.'.join(AtomicityMode.__members__)}."
        check_type("mode", self.mode, AtomicityMode, "an AtomicityMode", choices)

    @property
    def needs_marker(self) -> bool:
        """Whether a directory without a marker counts as unfinished."""
        return self.mode is AtomicityMode.COMMIT_FILE and not self.allow_legacy_atomic_rename


@dataclass
class AsyncOptions:
    """Options of background saves.

    Attributes:
        timeout_secs: Longest wait in seconds for a save and, within a background save, for other
            processes at each barrier.
        barrier_sync_fn: Ignored; processes synchronize through JAX's coordination service.
        post_finalization_callback: Called in the background once a checkpoint is durable.
        create_directories_asynchronously: Ignored; the directory exists when a save returns.
        snapshot: What a save does with JAX arrays before it returns. `"reference"` refers to
            outputs of compiled functions on the CPU, which takes next to no time, and copies arrays
            that may share the memory of a numpy array; until it ends, XLA copies arrays that are
            donated. `"copy"` copies all arrays to the host. `"device"` copies them on their
            devices, as far as these have room. `"auto"` is `"device"` on accelerators; on the CPU
            it is `"copy"` if arrays were donated during the last save, `"reference"` otherwise.
        kept_memory_bytes: Maximum bytes of host memory to keep for the copies of the next save;
            None for as much as the last one used, 0 for none. `close` gives it back.
        kept_memory_secs: After how many seconds without a save to give it back.
    """

    timeout_secs: float = 1200
    barrier_sync_fn: object = None
    post_finalization_callback: Callable[[], object] | None = None
    create_directories_asynchronously: bool = True
    snapshot: SnapshotMode = "auto"
    kept_memory_bytes: int | None = None
    kept_memory_secs: float = 600

    def __post_init__(self) -> None:
        check_number("timeout_secs", self.timeout_secs, can_be_zero=False)
        check_choice("snapshot", self.snapshot, get_args(SnapshotMode))
        check_int("kept_memory_bytes", self.kept_memory_bytes, least=0, optional=True)
        check_number("kept_memory_secs", self.kept_memory_secs, can_be_zero=False)
        callback = "Give a function without arguments."
        check_callable("post_finalization_callback", self.post_finalization_callback, callback)
        warn_set(
            "AsyncOptions",
            {
                "barrier_sync_fn": (
                    self.barrier_sync_fn,
                    None,
                    "processes meet through JAX's coordination service; see MultiprocessingOptions",
                ),
                "create_directories_asynchronously": (
                    self.create_directories_asynchronously,
                    True,
                    "a save has always made its directory when it returns",
                ),
            },
        )

    def snapshots(self) -> Snapshots:
        """Return what takes the arrays of a checkpointer's saves; close it with that."""
        memory = KeptMemory(self.kept_memory_bytes, self.kept_memory_secs)
        snapshots = Snapshots(self.snapshot, memory)
        reset_in_child(snapshots)
        return snapshots


_TIMEOUT_S = 600.0


@dataclass
class MultiprocessingOptions:
    """How the processes of a program save together.

    Attributes:
        primary_host: The process that creates directories, writes files of which there is only one,
            and decides. With None each process saves its own data into its own directory, on
            storage that the others need not see, and waits for nobody.
        active_processes: The saving processes, None for all; only they may call a save.
        barrier_sync_key_prefix: Distinguishes programs that share a coordination service.
        timeout_secs: Longest wait in seconds for other processes at each barrier. None for 600, or
            in the background for `AsyncOptions.timeout_secs`.
        group: The processes, instead of those given by the fields above.
    """

    primary_host: int | None = 0
    active_processes: Collection[int] | None = None
    barrier_sync_key_prefix: str | None = None
    timeout_secs: float | None = None
    group: ProcessGroup | None = None

    def __post_init__(self) -> None:
        if self.timeout_secs is not None:
            check_number("timeout_secs", self.timeout_secs, can_be_zero=False)
        check_int("primary_host", self.primary_host, least=0, optional=True)
        if self.active_processes is not None:
            check_steps("active_processes", self.active_processes, what="process numbers")
        prefix = "Give the name of this program, for example."
        check_type("barrier_sync_key_prefix", self.barrier_sync_key_prefix, str, "a str", prefix)
        group = "Leave it out for the processes of JAX."
        check_methods("group", self.group, ["process", "join"], group)

    @property
    def timeout_s(self) -> float:
        """Longest wait for other processes."""
        return _TIMEOUT_S if self.timeout_secs is None else self.timeout_secs

    def in_background(self, timeout_s: float) -> MultiprocessingOptions:
        """Return these options for background saves, with their timeout as the default."""
        return self if self.timeout_secs is not None else replace(self, timeout_secs=timeout_s)

    def find_group(self) -> ProcessGroup:
        """Return the processes that save.

        Raises:
            ValueError: This process or `primary_host` is not in `active_processes`.
        """
        return self.group or default_group(
            self.barrier_sync_key_prefix or "",
            primary=self.primary_host,
            active=self.active_processes,
        )


@dataclass
class CompositeOptions:
    """Orbax's options of a `CompositeHandler`; they have no effect here.

    The checkpointer or manager decides all of this; give the options to it.

    Attributes:
        multiprocessing_options: See `MultiprocessingOptions`.
        temporary_path_class: See `path.atomicity`.
        file_options: See `FileOptions`.
        atomicity_options: See `AtomicityOptions`.
        async_options: See `AsyncOptions`.
    """

    multiprocessing_options: MultiprocessingOptions = field(default_factory=MultiprocessingOptions)
    temporary_path_class: type | None = None
    file_options: FileOptions | None = None
    atomicity_options: AtomicityOptions | None = None
    async_options: AsyncOptions | None = None


def check_options(**given: object) -> None:
    """Check that options are objects of this module's classes; keywords give their names.

    Raises:
        TypeError: One has another type, such as a number.
    """
    for name, value in given.items():
        kind, example = _KINDS[name]
        check_type(name, value, kind, f"of type {kind.__name__}", f"Give {example}.")


_KINDS: Mapping[str, tuple[type, str]] = {
    "async_options": (AsyncOptions, "AsyncOptions(timeout_secs=600)"),
    "multiprocessing_options": (MultiprocessingOptions, "MultiprocessingOptions(primary_host=0)"),
    "file_options": (FileOptions, "FileOptions(path_permission_mode=0o750)"),
    "atomicity_options": (AtomicityOptions, "AtomicityOptions(AtomicityMode.COMMIT_FILE)"),
}


@dataclass(frozen=True)
class SessionOptions:
    """The options of a save session.

    Attributes:
        files: Properties of the files written.
        atomicity: How the checkpoint becomes visible.
        multiprocessing: How processes save together.
        time_ns: Returns the time to record, in nanoseconds since the epoch.
    """

    files: FileOptions = field(default_factory=FileOptions)
    atomicity: AtomicityOptions = field(default_factory=AtomicityOptions)
    multiprocessing: MultiprocessingOptions = field(default_factory=MultiprocessingOptions)
    time_ns: Callable[[], int] = time.time_ns
