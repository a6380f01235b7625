"""Options of checkpointers; Orbax's names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from orbit_ckpt._src.runtime.checks import (
    check_callable,
    check_int,
    check_methods,
    check_number,
    check_steps,
    check_type,
)
from orbit_ckpt._src.runtime.jax_process_group import default_group
from orbit_ckpt._src.runtime.process import ProcessGroup
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.unused import warn_set


@dataclass(frozen=True)
class FileOptions:
    """How files are made.

    Attributes:
        path_permission_mode: Permission bits of a checkpoint's directory, None for the default.
    """

    path_permission_mode: int | None = None

    def __post_init__(self) -> None:
        check_int("path_permission_mode", self.path_permission_mode, least=0, optional=True)


@dataclass(frozen=True)
class AtomicityOptions:
    """How a checkpoint becomes visible.

    Attributes:
        mode: By renaming a temporary directory, or by a marker file.
        allow_legacy_atomic_rename: Whether checkpoints without a marker are restored in marker
            mode too, because they were made by renaming.
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
    """How saves go on in the background.

    Attributes:
        timeout_secs: Most seconds to wait for a save; and, in one that goes on in the background,
            for other processes wherever all meet.
        barrier_sync_fn: Does nothing here; processes meet through JAX's coordination service.
        post_finalization_callback: Called, in the background, once a checkpoint is durable.
        create_directories_asynchronously: Does nothing here; a save has made its directory when it
            returns.
    """

    timeout_secs: float = 1200
    barrier_sync_fn: object = None
    post_finalization_callback: Callable[[], object] | None = None
    create_directories_asynchronously: bool = True

    def __post_init__(self) -> None:
        check_number("timeout_secs", self.timeout_secs, can_be_zero=False)
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


_TIMEOUT_S = 600.0


@dataclass
class MultiprocessingOptions:
    """How the processes of a program save together.

    Attributes:
        primary_host: The process that makes directories, writes what only one may write, and
            decides. With None each process is on its own: it saves what it has into a directory of
            its own, on storage that the others need not see, and waits for nobody.
        active_processes: The processes that save, None for all; only they may call what saves.
        barrier_sync_key_prefix: Tells programs apart that share a coordination service.
        timeout_secs: Most seconds to wait for other processes wherever all meet. None for 600, or
            in the background for `AsyncOptions.timeout_secs`.
        group: The processes, instead of those that the fields before say.
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
        """How long to wait for other processes."""
        return _TIMEOUT_S if self.timeout_secs is None else self.timeout_secs

    def in_background(self, timeout_s: float) -> MultiprocessingOptions:
        """Return these options for saves in the background, which may take so long."""
        return self if self.timeout_secs is not None else replace(self, timeout_secs=timeout_s)

    def find_group(self) -> ProcessGroup:
        """Return the processes that save.

        Raises:
            ValueError: This process, or `primary_host`, is none of `active_processes`.
        """
        return self.group or default_group(
            self.barrier_sync_key_prefix or "",
            primary=self.primary_host,
            active=self.active_processes,
        )


def check_options(**given: object) -> None:
    """Check options that are objects of the classes of this module, by the names they go by.

    Raises:
        TypeError: One is something else, such as a number.
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
    """What a save session needs to know.

    Attributes:
        files: How files are made.
        atomicity: How the checkpoint becomes visible.
        multiprocessing: How processes save together.
    """

    files: FileOptions = field(default_factory=FileOptions)
    atomicity: AtomicityOptions = field(default_factory=AtomicityOptions)
    multiprocessing: MultiprocessingOptions = field(default_factory=MultiprocessingOptions)
