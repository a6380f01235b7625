"""The options of a context, named as in Orbax's v1 API."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from orbit_ckpt._src.arrays.watch import SerializationStatusCallback
from orbit_ckpt._src.checkpointer import options as engine
from orbit_ckpt._src.checkpointer.options import SessionOptions
from orbit_ckpt._src.items.pytree import PyTreeMetadataOptions
from orbit_ckpt._src.pytree import engine as trees
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.type_handlers.transfers import PriorityFunction
from orbit_ckpt._src.v1.guard import Options, Unused
from orbit_ckpt._src.v1.registration import (
    CheckpointableHandlerRegistry,
    ReadOnlyCheckpointableHandlerRegistry,
    global_registry,
)


@dataclass(kw_only=True)
class AsyncOptions(Options):
    """Options of background saves.

    Attributes:
        timeout_secs: Longest wait in seconds for other processes at each barrier of a save.
        post_finalization_callback: Called in the background once a checkpoint is durable.
        create_directories_asynchronously: Ignored; the directory exists when a save returns.
    """

    UNUSED: ClassVar[Unused] = {
        "create_directories_asynchronously": "a save has always made its directory when it returns"
    }

    timeout_secs: float = 1200
    post_finalization_callback: Callable[[], object] | None = None
    create_directories_asynchronously: bool = True


@dataclass(kw_only=True)
class AtomicityOptions(Options):
    """How a checkpoint becomes visible.

    Attributes:
        mode: By renaming a temporary directory, or by a marker file.
        allow_legacy_atomic_rename: Whether marker mode also loads checkpoints without a marker.
    """

    mode: AtomicityMode = AtomicityMode.AUTO
    allow_legacy_atomic_rename: bool = False


@dataclass(kw_only=True)
class MultiprocessingOptions(Options):
    """How the processes of a program save together.

    Attributes:
        primary_host: The process that creates directories and decides; with None each process saves
            on its own, into storage that the others need not see.
        active_processes: The saving processes, None for all.
        barrier_sync_key_prefix: Distinguishes programs that share a coordination service.
    """

    primary_host: int | None = 0
    active_processes: Collection[int] | None = None
    barrier_sync_key_prefix: str | None = None


def _path_class() -> Callable[[Any], Path]:
    from etils import epath  # noqa: PLC0415 - its import costs more than the rest of ours

    return epath.Path


@dataclass(kw_only=True)
class FileOptions(Options):
    """Properties of files and paths.

    Attributes:
        path_permission_mode: Permission bits of a checkpoint's directory, None for the default.
        path_class: The class of the paths that handlers receive and metadata has.
        skip_sync_file_validations: Ignored; a save looks for an existing checkpoint once.
    """

    UNUSED: ClassVar[Unused] = {
        "skip_sync_file_validations": "a save looks once for an existing checkpoint"
    }

    path_permission_mode: int | None = None
    path_class: Callable[[Any], Path] = field(default_factory=_path_class)
    skip_sync_file_validations: bool = False


@dataclass(kw_only=True)
class PyTreeOptions(Options):
    """Options of trees.

    Attributes:
        saving: Those of saves.
        loading: Those of loads.
    """

    @dataclass(kw_only=True)
    class Saving(Options):
        """Options of saves.

        Attributes:
            pytree_metadata_options: What to record of a tree.
        """

        pytree_metadata_options: PyTreeMetadataOptions = field(
            default_factory=PyTreeMetadataOptions
        )

    @dataclass(kw_only=True)
    class Loading(Options):
        """Options of loads.

        Attributes:
            partial_load: Whether an abstract state may lack leaves of the checkpoint, and have
                leaves that the checkpoint lacks, which are returned unchanged.
        """

        partial_load: bool = False

    saving: Saving = field(default_factory=Saving)
    loading: Loading = field(default_factory=Loading)


@dataclass(kw_only=True)
class ArrayOptions(Options):
    """Options of arrays.

    Attributes:
        saving: Those of saves.
        loading: Those of loads.
    """

    @dataclass(kw_only=True)
    class Saving(Options):
        """Options of saves.

        Attributes:
            storage_options: How arrays are stored.
            use_ocdbt: Whether arrays share one database instead of having a directory each.
            use_zarr3: Whether to write zarr3, with a checksum in every chunk, instead of zarr2.
            use_compression: Whether to compress arrays with zstd; small ones never are.
            ocdbt_target_data_file_size: Size in bytes at which to start a new data file; None for
                2 GiB, 0 for no limit.
            enable_pinned_host_transfer: Ignored.
            enable_post_merge_validation: Ignored.
            use_replica_parallel: Whether all replicas of an array write a share of it.
            min_slice_bytes_for_replica_parallel: Fewest bytes of a share; else one replica writes.
            max_replicas_for_replica_parallel: Most replicas that write one array.
            enable_replica_parallel_separate_folder: Whether arrays that are replicated go into
                databases of their own.
            enable_write_sharding_file: Whether to record the shardings of arrays.
            array_metadata_store: Ignored.
            scoped_storage_options_creator: Called with the key path and value of every leaf;
                returns options that take precedence over `storage_options`, or None.
        """

        UNUSED: ClassVar[Unused] = {
            "enable_pinned_host_transfer": "arrays are copied from devices in another way",
            "enable_post_merge_validation": "a save always checks what it has written",
            "array_metadata_store": "array metadata is always written",
        }

        @dataclass(kw_only=True)
        class StorageOptions(Options):
            """How one array is stored.

            Attributes:
                dtype: Dtype to cast to.
                chunk_byte_size: Maximum bytes of one chunk; None as in `SaveArgs`.
                shard_axes: Axes to cut first.
            """

            dtype: object = None
            chunk_byte_size: int | None = None
            shard_axes: tuple[int, ...] | None = None

        class ScopedStorageOptionsCreator(Protocol):
            """Chooses the storage options of one leaf."""

            def __call__(self, key: Any, value: Any) -> Any:
                """Return `StorageOptions`, or None for the general ones."""
                ...

        storage_options: StorageOptions = field(default_factory=StorageOptions)
        use_ocdbt: bool = True
        use_zarr3: bool = True
        use_compression: bool = True
        ocdbt_target_data_file_size: int | None = None
        enable_pinned_host_transfer: bool | None = None
        enable_post_merge_validation: bool = True
        use_replica_parallel: bool | None = None
        min_slice_bytes_for_replica_parallel: int | None = None
        max_replicas_for_replica_parallel: int | None = None
        enable_replica_parallel_separate_folder: bool = False
        enable_write_sharding_file: bool = True
        array_metadata_store: object = None
        scoped_storage_options_creator: ScopedStorageOptionsCreator | None = None

    @dataclass(kw_only=True)
    class Loading(Options):
        """Options of loads.

        Attributes:
            enable_padding_and_truncation: Whether arrays of another shape than the saved one are
                padded with zeros or cut, instead of an error.
            raise_array_data_missing_error: Ignored; missing data is always an error.
            use_load_and_broadcast: Whether one replica reads and sends to the others.
            load_and_broadcast_options: Which replica, and how much at once.
        """

        UNUSED: ClassVar[Unused] = {
            "raise_array_data_missing_error": "zeros in place of lost data would go unnoticed"
        }

        @dataclass(kw_only=True)
        class LoadAndBroadcastOptions(Options):
            """How one replica reads for all.

            Attributes:
                replica_axis_index: The axis of the mesh along which replicas lie.
                primary_replica_id: The replica that reads.
                broadcast_memory_limit_bytes: Most bytes to send at once.
                broadcast_memory_scaling_factor: Share of the free memory to use for that.
            """

            replica_axis_index: int | None = 0
            primary_replica_id: int | None = 0
            broadcast_memory_limit_bytes: int | None = None
            broadcast_memory_scaling_factor: float | None = 0.75

        enable_padding_and_truncation: bool = False
        raise_array_data_missing_error: bool = True
        use_load_and_broadcast: bool = False
        load_and_broadcast_options: LoadAndBroadcastOptions = field(
            default_factory=LoadAndBroadcastOptions
        )

    saving: Saving = field(default_factory=Saving)
    loading: Loading = field(default_factory=Loading)


def _read_only_registry() -> CheckpointableHandlerRegistry:
    return ReadOnlyCheckpointableHandlerRegistry(global_registry())


@dataclass(kw_only=True)
class CheckpointablesOptions(Options):
    """How the handlers of checkpointables are found.

    Attributes:
        registry: The handlers; of several that fit, the one registered last counts.
    """

    registry: CheckpointableHandlerRegistry = field(default_factory=_read_only_registry)

    @override
    def _copied(self, value: object, memo: dict[int, object]) -> object:
        return copy.copy(value)


@dataclass(kw_only=True)
class PathwaysOptions(Options):
    """Options of Pathways.

    Attributes:
        checkpointing_impl: Ignored.
    """

    UNUSED: ClassVar[Unused] = {"checkpointing_impl": "Pathways is not supported"}

    checkpointing_impl: object = None


@dataclass(kw_only=True)
class DeletionOptions(Options):
    """How checkpoints are deleted.

    Attributes:
        gcs_deletion_options: Options for Google's store.
    """

    @dataclass(kw_only=True)
    class GcsDeletionOptions(Options):
        """Options for Google's store.

        Attributes:
            todelete_full_path: A directory of the bucket into which deleted checkpoints are moved.
        """

        todelete_full_path: str | None = None

    gcs_deletion_options: GcsDeletionOptions = field(default_factory=GcsDeletionOptions)


_LIMITS = "set write_concurrent_bytes or transfer_concurrent_bytes; large arrays go in parts"


@dataclass(kw_only=True)
class MemoryOptions(Options):
    """Limits of host memory, for each process.

    Attributes:
        write_concurrent_bytes: Most bytes held for writing at once; None for 2 GiB.
        read_concurrent_bytes: Most bytes being read at once; None for a default by core. Also the
            most bytes that lazy arrays keep of their chunks; None for 256 MiB.
        transfer_concurrent_bytes: Most bytes being copied from devices at once; None for no limit.
        regulator_options: Ignored.
        expected_surge_bytes: Ignored.
        is_prioritized_key_fn: Returns the `TransferPriority` of an array, given its key path. With
            `transfer_concurrent_bytes`, arrays that are not synchronous are copied from devices
            only when they are written; do not delete or donate them before the save ends.
        serialization_status_callback: Notified of transfers and writes of every JAX array; decides
            on priorities instead of `is_prioritized_key_fn`.
        deepcopy_host_arrays: Whether a background save copies arrays of NumPy before it returns.
    """

    UNUSED: ClassVar[Unused] = {
        "regulator_options": _LIMITS,
        "expected_surge_bytes": _LIMITS,
    }

    write_concurrent_bytes: int | None = None
    read_concurrent_bytes: int | None = None
    transfer_concurrent_bytes: int | None = None
    regulator_options: object = None
    expected_surge_bytes: float | None = None
    is_prioritized_key_fn: PriorityFunction | None = None
    serialization_status_callback: SerializationStatusCallback | None = None
    deepcopy_host_arrays: bool = True

    def limits(self) -> trees.MemoryOptions:
        """Return the limits for the engine."""
        return trees.MemoryOptions(
            self.write_concurrent_bytes, self.read_concurrent_bytes, self.transfer_concurrent_bytes
        )


_READ = "ranges are read as they lie, within MemoryOptions.read_concurrent_bytes"


@dataclass(kw_only=True)
class SafetensorsOptions(Options):
    """Options of reading safetensors.

    Attributes:
        max_over_read_ratio: Ignored.
        read_chunk_bytes: Ignored.
    """

    UNUSED: ClassVar[Unused] = {"max_over_read_ratio": _READ, "read_chunk_bytes": _READ}

    max_over_read_ratio: float | None = None
    read_chunk_bytes: int | None = None


class CheckpointLayout(enum.Enum):
    """The format of a checkpoint to load; saves always write Orbax's.

    Attributes:
        ORBAX: Orbax's.
        SAFETENSORS: That of Hugging Face.
        AUTO: Whichever is found.
    """

    ORBAX = "orbax"
    SAFETENSORS = "safetensors"
    AUTO = "auto"


def session_options(
    asynchronous: AsyncOptions,
    multiprocessing: MultiprocessingOptions,
    file: FileOptions,
    atomicity: AtomicityOptions,
) -> SessionOptions:
    """Return the engine's options of a save."""
    processes = engine.MultiprocessingOptions(
        multiprocessing.primary_host,
        multiprocessing.active_processes,
        multiprocessing.barrier_sync_key_prefix,
    )
    return SessionOptions(
        engine.FileOptions(file.path_permission_mode),
        engine.AtomicityOptions(atomicity.mode, atomicity.allow_legacy_atomic_rename),
        processes.in_background(asynchronous.timeout_secs),
    )
