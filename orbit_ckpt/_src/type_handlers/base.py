"""The interface of type handlers and its values; compatible with Orbax's.

A handler written for Orbax registers unchanged: it sees the same methods, arguments and
`ParamInfo`. The handlers of this package also use `ParamInfo.save_batch` and
`ParamInfo.load_batch`, through which all leaves of one tree share transactions and indexes.
Optional protocols declare further capabilities of a handler: `ValueChecker`, `SnapshotHandler`,
`ReadPlanner`, `ArrayStorage`, `TextStorage`, `LazyReader`, all in `type_handlers.capabilities`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from msgspec import Struct, field

from orbit_ckpt._src.arrays.dtypes import DType, check_dtype, parse_dtype, stored_dtype
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.metadata.array_records import ArrayRecord
from orbit_ckpt._src.metadata.files import read_strings
from orbit_ckpt._src.metadata.schema import LeafDetail
from orbit_ckpt._src.metadata.values import Metadata
from orbit_ckpt._src.runtime.checks import check_axes, check_int
from orbit_ckpt._src.runtime.process import Process
from orbit_ckpt._src.storage.array_layouts import ArrayLayouts
from orbit_ckpt._src.storage.integrity import open_checked
from orbit_ckpt._src.storage.layout import DEFAULT_DATA_FILE_BYTES, STRINGS
from orbit_ckpt._src.text import warn_set
from orbit_ckpt._src.tree.keypath import KeyPath, format_path, jax_path

if TYPE_CHECKING:
    import tensorstore as ts

    from orbit_ckpt._src.arrays.sharding import ShardingResolver
    from orbit_ckpt._src.runtime.futures import Future
    from orbit_ckpt._src.runtime.limiter import ByteLimiter
    from orbit_ckpt._src.storage.batch_read import BatchReader
    from orbit_ckpt._src.storage.batch_write import BatchWriter


@dataclass
class SaveArgs:
    """How one leaf is written.

    Attributes:
        aggregate: Ignored; every array has chunks of its own.
        dtype: Dtype to cast to before writing, as any value that names one.
        chunk_byte_size: Maximum bytes of one chunk. None for what one device writes, in blocks of
            rows of at most 32 MiB if the array permits.
        shard_axes: Axes to cut into chunks of length one.
        read_shapes: Shapes of the parts in which the array will be read, such as the shards on
            other meshes: chunks are cut so that each part consists of whole ones, but not below
            1 MiB. Without effect where the previous two are given. See `save(expected_meshes=...)`.
    """

    aggregate: bool = False
    dtype: object = None
    chunk_byte_size: int | None = None
    shard_axes: tuple[int, ...] = ()
    read_shapes: tuple[Shape, ...] = ()

    def __post_init__(self) -> None:
        check_dtype("SaveArgs.dtype", self.dtype)
        if self.chunk_byte_size is not None:
            check_int("SaveArgs.chunk_byte_size", self.chunk_byte_size, least=1)
        if self.shard_axes != ():
            check_axes("SaveArgs.shard_axes", self.shard_axes)
        for part in self.read_shapes:
            check_axes("SaveArgs.read_shapes", part)
        if self.aggregate:
            why = "all small arrays are in one file anyway, and every array has chunks of its own"
            warn_set("SaveArgs", {"aggregate": (self.aggregate, False, why)})


@dataclass
class RestoreArgs:
    """How one leaf is restored.

    Attributes:
        restore_type: Requested type: `jax.Array`, `np.ndarray`, `int`, `float`, ...; None for the
            saved one.
        dtype: Dtype to cast to, None for the saved one.
    """

    restore_type: object = None
    dtype: object = None

    def __post_init__(self) -> None:
        check_dtype("RestoreArgs.dtype", self.dtype)


class SaveBatch(Struct):
    """State that the handlers of one save share.

    Attributes:
        writer: Collects arrays; written when all handlers have returned.
        copy: Whether the caller may change its leaves before that.
        process: The process that saves; others save other parts of the same arrays.
        arrays: Records of JAX arrays, of those that hold typed PRNG keys.
        has_all_records: Whether `arrays` has a record of every JAX array.
        shardings: Their shardings by storage name.
        details: Leaf details that Orbax's documents lose, by storage name.
        strings: String leaves by storage name, by the name of their file.
        plans: Cache of handlers, to plan equal leaves once.
        place: Returns the writer of a database, see `writer_in`.
    """

    writer: BatchWriter
    copy: bool = False
    process: Process = Process()
    arrays: list[ArrayRecord] = field(default_factory=list[ArrayRecord])
    has_all_records: bool = False
    shardings: dict[str, ShardingMetadata] = field(default_factory=dict[str, ShardingMetadata])
    details: dict[str, LeafDetail] = field(default_factory=dict[str, LeafDetail])
    strings: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    plans: dict[object, object] = field(default_factory=dict[object, object])
    place: Callable[[str], BatchWriter] | None = None

    def writer_in(self, database: str | None) -> BatchWriter:
        """Return the writer of a database, given the name of its directory.

        None stands for the database of the process, which arrays without a database use too.
        """
        return self.writer if database is None or self.place is None else self.place(database)


class LoadBatch(Struct, frozen=True, dict=True):
    """State that the handlers of one restore share.

    Attributes:
        layouts: Tells how arrays are stored.
        open_reader: Returns what reads them.
        arrays: Records of JAX arrays by storage name, where they add to the rest.
        decode_shardings: Returns their recorded shardings.
        details: Leaf details that Orbax's documents lose.
        strings: Contents of the strings file.
        given_resolver: Converts recorded shardings to JAX's; None falls back to the default device.
        share_reads: Whether processes that need the same part of an array divide its reading.
    """

    layouts: ArrayLayouts
    open_reader: Callable[[], BatchReader]
    arrays: Mapping[str, ArrayRecord]
    decode_shardings: Callable[[], Mapping[str, ShardingMetadata]]
    details: Mapping[str, LeafDetail]
    strings: Mapping[str, object]
    given_resolver: ShardingResolver | None = None
    share_reads: bool = False

    @functools.cached_property
    def _other_strings(self) -> dict[str, Mapping[str, object]]:
        return {}

    def strings_in(self, directory: Path, file: str) -> Mapping[str, object]:
        """Return the contents of a strings file of the tree's directory."""
        if file == STRINGS:
            return self.strings
        if file not in self._other_strings:
            self._other_strings[file] = read_strings(open_checked(directory), file)
        return self._other_strings[file]

    @functools.cached_property
    def reader(self) -> BatchReader:
        """The reader of arrays, opened on first use."""
        return self.open_reader()

    @functools.cached_property
    def resolver(self) -> ShardingResolver:
        """The converter of recorded shardings to JAX's, created on first use."""
        from orbit_ckpt._src.arrays.sharding import ShardingResolver  # noqa: PLC0415 - imports JAX

        return self.given_resolver or ShardingResolver()

    @functools.cached_property
    def shardings(self) -> Mapping[str, ShardingMetadata]:
        """The recorded shardings of JAX arrays, decoded on first use."""
        return self.decode_shardings()


class ParamInfo:
    """Where one leaf is stored, and how; computed by the library, not given by users.

    Attributes:
        name: Storage name.
        parent_dir: Directory of the item.
        skip_deserialize: Whether nothing is stored for the leaf.
        byte_limiter: Budget for bytes being read or written.
        device_host_byte_limiter: Budget for bytes being copied from devices.
        is_ocdbt_checkpoint: Whether arrays are in a database.
        use_compression: Whether arrays are compressed.
        use_zarr3: Whether arrays are zarr3, else zarr2.
        ocdbt_target_data_file_size: Size at which a new data file is begun.
        ts_context: TensorStore context to share.
        value_typestr: Typestr of the handler that wrote the leaf.
        enable_pinned_host_transfer: Whether to copy through pinned memory.
        raise_array_data_missing_error: Whether a missing chunk is an error.
        write_shape: Shape of the part that one device writes.
        is_prioritized_key_fn: Returns the `TransferPriority` of a leaf, None for all synchronous.
        ext_metadata: A JSON object about the leaf: `serialize` sets it, and a restore gets it back.
            Orbax stores it in the same place.
        save_batch: Shared state of a save.
        load_batch: Shared state of a restore.
    """

    ext_metadata: Mapping[str, object] | None = None  # here, because few leaves have one

    def __init__(  # noqa: PLR0913 - Orbax's constructor
        self,
        *,
        name: str,
        parent_dir: Path,
        path: Path | None = None,
        keypath: KeyPath | None = None,
        skip_deserialize: bool | None = None,
        byte_limiter: ByteLimiter | None = None,
        device_host_byte_limiter: ByteLimiter | None = None,
        is_ocdbt_checkpoint: bool | None = None,
        use_compression: bool | None = True,
        use_zarr3: bool | None = True,
        ocdbt_target_data_file_size: int | None = None,
        ts_context: ts.Context | None = None,
        value_typestr: str | None = None,
        enable_pinned_host_transfer: bool = False,
        raise_array_data_missing_error: bool = True,
        write_shape: Shape | None = None,
        is_prioritized_key_fn: Callable[[Any], object] | None = None,
        ext_metadata: Mapping[str, object] | None = None,
        save_batch: SaveBatch | None = None,
        load_batch: LoadBatch | None = None,
    ) -> None:
        self.name = name
        self.parent_dir = parent_dir
        self._path = path
        self._keypath = keypath
        self.skip_deserialize = skip_deserialize
        self.byte_limiter = byte_limiter
        self.device_host_byte_limiter = device_host_byte_limiter
        self.is_ocdbt_checkpoint = is_ocdbt_checkpoint
        self.use_compression = use_compression
        self.use_zarr3 = use_zarr3
        self.ocdbt_target_data_file_size = ocdbt_target_data_file_size
        self.ts_context = ts_context
        self.value_typestr = value_typestr
        self.enable_pinned_host_transfer = enable_pinned_host_transfer
        self.raise_array_data_missing_error = raise_array_data_missing_error
        self.write_shape = write_shape
        self.is_prioritized_key_fn = is_prioritized_key_fn
        if ext_metadata is not None:
            self.ext_metadata = ext_metadata
        self.save_batch = save_batch
        self.load_batch = load_batch

    @property
    def path(self) -> Path:
        """`parent_dir / name` if not given; joined on demand, because few handlers read it."""
        return self.parent_dir / self.name if self._path is None else self._path

    @path.setter
    def path(self, path: Path | None) -> None:
        self._path = path

    @property
    def keypath(self) -> KeyPath | None:
        """Where the leaf sits in the tree, with JAX's keys as handlers written for Orbax expect."""
        return None if self._keypath is None else jax_path(self._keypath)

    @keypath.setter
    def keypath(self, path: KeyPath | None) -> None:
        self._keypath = path

    def replace(self, **changes: object) -> Self:
        """Return a copy with some attributes changed.

        Raises:
            TypeError: There is no such attribute.
        """
        arguments = {name.removeprefix("_"): value for name, value in vars(self).items()}
        arguments.update(changes)
        return type(self)(**arguments)

    async def await_path_creation(self) -> None:
        """Return once `parent_dir` exists; here it always does."""

    @property
    def location(self) -> KeyPath:
        """Where the leaf sits, known or not."""
        return (self.name,) if self._keypath is None else self._keypath

    @property
    def label(self) -> str:
        """The leaf's path as text, for messages."""
        return format_path(self.location)

    @property
    def data_file_bytes(self) -> int:
        """Size at which a new data file is begun, 0 for no limit."""
        size = self.ocdbt_target_data_file_size
        return DEFAULT_DATA_FILE_BYTES if size is None else size


@runtime_checkable
class TypeHandler(Protocol):
    """Writes and reads the leaves of some types, many in one call."""

    def typestr(self) -> str:
        """Return the name by which checkpoints refer to this handler."""
        ...

    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[Metadata]:
        """Return metadata of stored leaves without reading their values."""
        ...

    async def serialize(
        self,
        values: Sequence[object],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,
    ) -> Sequence[Future]:
        """Copy leaves from the caller; the futures complete the rest."""
        ...

    async def deserialize(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[object]:
        """Return the values of stored leaves."""
        ...

    def finalize(self, directory: Path) -> None:
        """Finish after all leaves are written, before the commit; by default do nothing."""


def save_batch_of(info: ParamInfo) -> SaveBatch:
    """Return the shared state of the save that an info belongs to.

    Raises:
        ValueError: The info was made by hand, without one.
    """
    if info.save_batch is None:
        raise ValueError(f"{info.label}: ParamInfo.save_batch is not set; save with PyTreeHandler")
    return info.save_batch


def leaves_to_primary(infos: Sequence[ParamInfo]) -> bool:
    """Return whether another process writes the leaves that all processes have."""
    return bool(infos) and not save_batch_of(infos[0]).process.is_primary


def load_batch_of(info: ParamInfo) -> LoadBatch:
    """Return the shared state of the restore that an info belongs to.

    Raises:
        ValueError: The info was made by hand, without one.
    """
    if info.load_batch is None:
        raise ValueError(f"{info.label}: ParamInfo.load_batch is not set; load with PyTreeHandler")
    return info.load_batch


def logical_dtype(info: ParamInfo, stored: DType) -> DType:
    """Return the dtype that the user saved, which the stored one may represent.

    Raises:
        FormatError: The two do not match.
    """
    detail = load_batch_of(info).details.get(info.name)
    if detail is None or detail.dtype is None:
        return stored
    logical = parse_dtype(detail.dtype)
    if stored_dtype(logical) != stored:
        raise FormatError(f"{info.label}: recorded as {logical}, which is not stored as {stored}")
    return logical
