"""Options of checkpointers; Orbax's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from orbit_ckpt.runtime.coordination import default_group
from orbit_ckpt.runtime.process import ProcessGroup
from orbit_ckpt.storage.atomic import AtomicityMode


@dataclass(frozen=True)
class FileOptions:
    """How files are made.

    Attributes:
        path_permission_mode: Permission bits of a checkpoint's directory, None for the default.
    """

    path_permission_mode: int | None = None


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

    @property
    def needs_marker(self) -> bool:
        """Whether a directory without a marker counts as unfinished."""
        return self.mode is AtomicityMode.COMMIT_FILE and not self.allow_legacy_atomic_rename


@dataclass(frozen=True)
class AsyncOptions:
    """How saves go on in the background.

    Attributes:
        timeout_secs: Most seconds to wait for a save.
        barrier_sync_fn: Not used; kept because Orbax has it.
        post_finalization_callback: Called, in the background, once a checkpoint is durable.
        create_directories_asynchronously: Not used; kept because Orbax has it.
    """

    timeout_secs: float = 1200
    barrier_sync_fn: object = None
    post_finalization_callback: Callable[[], object] | None = None
    create_directories_asynchronously: bool = True


@dataclass(frozen=True)
class MultiprocessingOptions:
    """How the processes of a program save together.

    Attributes:
        barrier_sync_key_prefix: Tells programs apart that share a coordination service.
        timeout_secs: Most seconds to wait for other processes wherever all meet.
        group: The processes; None for those of `jax.distributed`, or this one alone without it.
    """

    barrier_sync_key_prefix: str | None = None
    timeout_secs: float = 600
    group: ProcessGroup | None = None

    def __post_init__(self) -> None:
        if self.timeout_secs <= 0:
            raise ValueError(f"timeout_secs must be positive, found {self.timeout_secs}")

    def find_group(self) -> ProcessGroup:
        """Return the processes that save."""
        return self.group or default_group(self.barrier_sync_key_prefix or "")


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
