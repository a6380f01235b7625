"""Orbax's managers for Google's clusters, as names whose errors state an alternative.

Their options can be constructed, so that a program that only configures them keeps running. The
managers cannot: they need services of Google's clusters, or copy checkpoints between slices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NoReturn

from orbit_ckpt._src.checkpointer.options import AsyncOptions
from orbit_ckpt._src.errors import NotSupportedError
from orbit_ckpt._src.manager.preservation import PreservationPolicy
from orbit_ckpt._src.manager.save_policies import SaveDecisionPolicy
from orbit_ckpt._src.manager.step_names import StepNameFormat
from orbit_ckpt._src.manager.steps import StepNames

_TWO_RUNS = (
    "Use two managers: CheckpointManager(local_directory, options=CheckpointManagerOptions("
    "save_interval_steps=10, max_to_keep=2, multiprocessing_options=MultiprocessingOptions("
    "primary_host=None))), where each process saves what it holds to its own disk, and "
    "CheckpointManager(persistent_directory) with a longer interval. With primary_host=None no "
    "array may span processes, and a process restores only what it saved itself: after a host is "
    "replaced, restore from the persistent run. SingleReplicaArrayHandler reads that once and "
    "broadcasts it to the other replicas."
)
_NO_PATHWAYS = (
    "Leave the call out: type handlers need no registration. They copy arrays through the process "
    "that runs the program, and are not tested on Pathways."
)


@dataclass
class LocalCheckpointOptions:
    """What an emergency manager saves to local disks.

    Attributes:
        save_interval_steps: Steps between saves.
        save_interval_offset_steps: Offset of the saved steps.
        max_to_keep: Number of steps to keep; 1 unless a policy decides.
        read_only: Whether nothing is saved.
        should_save_fn: Decides instead of `save_interval_steps`.
        save_decision_policy: Decides instead of the above.
        preservation_policy: What to keep, instead of `max_to_keep`.
        debug_use_full_global_mesh: For tests of Orbax.
    """

    save_interval_steps: int = 10
    max_to_keep: int | None = None
    read_only: bool = False
    should_save_fn: Callable[[int, int | None], bool] | None = None
    save_decision_policy: SaveDecisionPolicy | None = None
    preservation_policy: PreservationPolicy | None = None
    debug_use_full_global_mesh: bool = False
    save_interval_offset_steps: int = 0

    def __post_init__(self) -> None:
        if self.max_to_keep is None and self.preservation_policy is None:
            self.max_to_keep = 1


@dataclass
class PersistentCheckpointOptions:
    """What an emergency manager saves to shared storage.

    Attributes:
        save_interval_steps: Steps between saves.
        save_interval_offset_steps: Offset of the saved steps.
        max_to_keep: Number of steps to keep.
        keep_period: Keep multiples of it.
        should_save_fn: Decides instead of `save_interval_steps`.
        save_decision_policy: Decides instead of the above.
        preservation_policy: What to keep, instead of `max_to_keep`.
    """

    save_interval_steps: int = 1000
    max_to_keep: int | None = None
    keep_period: int | None = None
    should_save_fn: Callable[[int, int | None], bool] | None = None
    save_decision_policy: SaveDecisionPolicy | None = None
    preservation_policy: PreservationPolicy | None = None
    save_interval_offset_steps: int = 0


@dataclass
class EmergencyMultiprocessingOptions:
    """How the processes of an emergency manager synchronize.

    Attributes:
        coordination_timeout_secs: Longest wait for other processes.
    """

    coordination_timeout_secs: int = 120


@dataclass
class EmergencyManagerOptions:
    """Options of an emergency manager.

    Attributes:
        local: What to save to local disks.
        persistent: What to save to shared storage.
        replica_axis_index: The mesh axis along which arrays are replicated.
        step_name_format: How steps are named.
        cleanup_tmp_directories: Whether unfinished saves are removed.
        enable_async_checkpointing: Whether to save in the background.
        async_options: Options of background saves.
        multiprocessing_options: How processes synchronize.
        single_host_load_and_broadcast: Whether one process lists the steps.
    """

    local: LocalCheckpointOptions = field(default_factory=LocalCheckpointOptions)
    persistent: PersistentCheckpointOptions = field(default_factory=PersistentCheckpointOptions)
    replica_axis_index: int = 0
    step_name_format: StepNames = field(default_factory=StepNameFormat)
    cleanup_tmp_directories: bool = False
    enable_async_checkpointing: bool = True
    async_options: AsyncOptions | None = None
    multiprocessing_options: EmergencyMultiprocessingOptions | None = None
    single_host_load_and_broadcast: bool = True


@dataclass
class ReplicatorCheckpointManagerOptions:
    """Options of a manager for the replication service of Google's clusters.

    Attributes:
        save_interval_steps: Steps between saves.
        step_name_format: How steps are named.
        should_save_fn: Decides instead of `save_interval_steps`.
        preservation_policy: What to keep.
        use_colocated_python: Whether Pathways' workers save.
        enable_async_checkpointing: Whether to save in the background.
        save_concurrent_gb: Most GB written at once.
        restore_concurrent_gb: Most GB read at once.
    """

    save_interval_steps: int = 1
    step_name_format: StepNames | None = None
    should_save_fn: Callable[[int, int | None], bool] | None = None
    preservation_policy: PreservationPolicy | None = None
    use_colocated_python: bool = False
    enable_async_checkpointing: bool = True
    save_concurrent_gb: int | None = None
    restore_concurrent_gb: int | None = None


class _Unsupported:
    """A manager that this library does not support."""

    _what: str
    _instead: str = _TWO_RUNS

    def __init__(self, *_: Any, **__: Any) -> None:
        """Refuse.

        Raises:
            NotSupportedError: Always; names an alternative.
        """
        raise NotSupportedError(f"{self._what} is not supported. {self._instead}")


class EmergencyCheckpointManager(_Unsupported):
    """Orbax's manager that saves to local disks and to shared storage; not supported."""

    _what = (
        "The emergency CheckpointManager, which restores a slice from the memory of other slices,"
    )


class PeerCheckpointManager(_Unsupported):
    """Orbax's manager that copies local checkpoints between processes; not supported."""

    _what = "The p2p CheckpointManager, which copies local checkpoints between processes,"


class ReplicatorCheckpointManager(_Unsupported):
    """Orbax's manager for the replication service of Google's clusters; not supported."""

    _what = "ReplicatorCheckpointManager, which needs a service of Google Kubernetes Engine,"


def initialize_multi_tier_checkpointing(*_: Any, **__: Any) -> NoReturn:
    """Refuse to start the replication service of Google's clusters.

    Raises:
        NotSupportedError: Always; names an alternative.
    """
    raise NotSupportedError(
        "initialize_multi_tier_checkpointing is not supported: it starts a service of Google "
        f"Kubernetes Engine. Call jax.distributed.initialize(). {_TWO_RUNS}"
    )


class CheckpointingImpl(Enum):
    """How Orbax saves on Pathways."""

    COLOCATED_PYTHON = auto()
    PERSISTENCE = auto()
    NO_DISPATCHER = auto()

    @classmethod
    def from_options(
        cls, *, use_colocated_python: bool = False, use_persistence_array_handler: bool = False
    ) -> CheckpointingImpl:
        """Return the first of the requested ones."""
        if use_colocated_python:
            return cls.COLOCATED_PYTHON
        return cls.PERSISTENCE if use_persistence_array_handler else cls.NO_DISPATCHER


def register_pathways_handlers(*_: Any, **__: Any) -> NoReturn:
    """Refuse to register type handlers for Pathways.

    Raises:
        NotSupportedError: Always; names an alternative.
    """
    raise NotSupportedError(f"pathways.register_type_handlers is not supported. {_NO_PATHWAYS}")
