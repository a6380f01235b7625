"""Batches of arrays written and read without the layers above them."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.arrays.slices import Region, Shape, whole
from orbit_ckpt._src.arrays.transfer import DeferredData, Shard
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.batch_write import BatchWriter, WriteOptions
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.kvstore import open_store
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.part_write import ArrayWrite
from orbit_ckpt._src.storage.small_write import WholeArrays
from orbit_ckpt._src.storage.zarr import describe_array
from orbit_ckpt.errors import CorruptionError, StorageError
from tests.support import scratch


class Store:
    """Writes arrays into a directory in one layout, and reads them."""

    def __init__(
        self,
        directory: Path,
        *,
        use_ocdbt: bool = True,
        zarr_format: int = 3,
        compress: bool = False,
    ) -> None:
        self.directory = directory
        self.use_ocdbt = use_ocdbt
        self.zarr_format = zarr_format
        self.compress = compress

    def write(
        self,
        arrays: dict[str, np.ndarray],
        *,
        chunks: Shape | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.directory.mkdir(exist_ok=True)
        options = WriteOptions(self.directory, self.use_ocdbt, None, max_bytes)
        writer = BatchWriter(options)
        for name, value in arrays.items():
            layout, document = describe_array(
                value.shape,
                chunks or tuple(max(1, n) for n in value.shape),
                value.dtype,
                zarr_format=self.zarr_format,
                compress=self.compress,
            )
            shards = [Shard(whole(value.shape), value)]
            writer.add(ArrayWrite(name, layout, document, shards, value.dtype, (name,)))
        asyncio.run(writer.commit())

    def write_with_tensorstore(self, name: str, value: np.ndarray, *, chunks: Shape) -> None:
        """Write an array whose shape need not be a multiple of its chunks' shape."""
        self.directory.mkdir(exist_ok=True)
        layout, document = describe_array(
            value.shape, chunks, value.dtype, zarr_format=self.zarr_format, compress=self.compress
        )
        base = f"file://{self.directory}/"
        array = ts.open(
            {
                "driver": layout.driver,
                "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}
                if self.use_ocdbt
                else f"{base}{name}/",
                "metadata": json.loads(document),
                "store_data_equal_to_fill_value": True,
            },
            create=True,
        ).result()
        array.write(value).result()

    def reader(self, *, max_bytes: int | None = None, fill_missing: bool = False) -> BatchReader:
        return BatchReader(
            open_store(CheckedDirectory(self.directory)),
            zarr_format=self.zarr_format,
            max_bytes=max_bytes,
            fill_missing=fill_missing,
        )

    def read(
        self, name: str, regions: Sequence[Region] | None = None, *, fill_missing: bool = False
    ) -> list[np.ndarray]:
        reader = self.reader(fill_missing=fill_missing)
        layout = reader.layouts([((name,), name)])[0]
        wanted = [whole(layout.shape)] if regions is None else regions
        (found,) = asyncio.run(reader.read([ArrayRead((name,), name, layout, wanted)]))
        return list(found)


LAYOUTS = [
    pytest.param({"use_ocdbt": o, "zarr_format": z, "compress": c}, id=f"{kind}-zarr{z}-{codec}")
    for o, kind in ((True, "ocdbt"), (False, "files"))
    for z in (3, 2)
    for c, codec in ((False, "plain"), (True, "zstd"))
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_one_and_of_many_chunks_round_trip(
    layout: dict[str, bool], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "": rng.standard_normal((60, 70)),
        "a": rng.integers(0, 9, (60, 70), np.int16),
        "a.b": rng.standard_normal((60, 70)).astype(ml_dtypes.bfloat16),
        "b": np.asfortranarray(rng.standard_normal((60, 70))),
        "c": rng.standard_normal((120, 140))[::2, ::2],
    }
    one, many = Store(tmp_path / "one", **layout), Store(tmp_path / "many", **layout)
    one.write(arrays)
    many.write(arrays, chunks=(15, 70))
    for name, value in arrays.items():
        for store in (one, many):
            (found,) = store.read(name)
            assert found.dtype == value.dtype
            assert found.tobytes() == value.tobytes()
            assert found.flags.writeable


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensorstore_reads_what_is_written(layout: dict[str, bool], tmp_path: Path) -> None:
    value = np.arange(10_000.0).reshape(100, 100)
    store = Store(tmp_path / "x", **layout)
    store.write({"w": value, "v": value[:3, 0]}, chunks=None)
    driver = "zarr3" if store.zarr_format == 3 else "zarr"
    kvstore = open_store(CheckedDirectory(store.directory)).spec
    for name, expected in (("w", value), ("v", value[:3, 0])):
        array = ts.open({"driver": driver, "kvstore": kvstore(name)}, open=True).result()
        assert np.array_equal(array.read().result(), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("max_bytes", [1, 5000, 1 << 20])
def test_a_byte_limit_changes_nothing_of_what_is_written(
    max_bytes: int, layout: dict[str, bool], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "over_the_limit": rng.standard_normal((52, 64)),
        "small": np.ones((4, 16)),
        "also_over": rng.standard_normal((36, 64)).astype(np.float32),
    }
    store = Store(tmp_path / "x", **layout)
    store.write(arrays, chunks=(4, 16), max_bytes=max_bytes)
    for name, value in arrays.items():
        assert np.array_equal(store.read(name)[0], value)


def test_reads_are_grouped_under_the_byte_limit_and_an_oversize_one_is_alone(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "x")
    sizes = [10, 20, 30, 500, 10, 90, 100, 5]
    store.write({str(i): np.zeros(n, np.uint8) for i, n in enumerate(sizes)})

    async def sizes_read(max_bytes: int | None) -> list[list[int]]:
        reader = store.reader(max_bytes=max_bytes)
        layouts = reader.layouts([((i,), str(i)) for i in range(len(sizes))])
        reads = [
            ArrayRead((i,), str(i), layout, [whole(layout.shape)])
            for i, layout in enumerate(layouts)
        ]
        windows = [window async for window in reader.read_in_windows(reads)]
        return [[array.nbytes for (array,) in window] for window in windows]

    assert asyncio.run(sizes_read(100)) == [[10, 20, 30], [500], [10, 90], [100], [5]]
    assert asyncio.run(sizes_read(None)) == [sizes]


def test_readers_in_parallel_share_the_byte_limit(tmp_path: Path) -> None:
    store = Store(tmp_path / "x")
    store.write({str(i): np.zeros(60, np.uint8) for i in range(6)})
    held: list[int] = []

    async def read_all() -> None:
        reader = store.reader(max_bytes=100)

        async def read(names: Sequence[str]) -> None:
            reads = [
                ArrayRead((name,), name, layout, [whole(layout.shape)])
                for name in names
                for layout in reader.layouts([((name,), name)])
            ]
            async for window in reader.read_in_windows(reads):
                held.append(sum(array.nbytes for (array,) in window))
                await asyncio.sleep(0)
                assert sum(held) <= 100
                held.pop()

        await asyncio.gather(read("012"), read("345"))

    asyncio.run(read_all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_arrays_are_read_alone(layout: dict[str, bool], tmp_path: Path) -> None:
    value = np.arange(100 * 90).reshape(100, 90)
    store = Store(tmp_path / "x", **layout)
    store.write_with_tensorstore("w", value, chunks=(30, 40))
    regions = [
        Region((0, 0), (30, 40)),
        Region((90, 80), (10, 10)),
        Region((29, 39), (2, 2)),
        Region((5, 0), (80, 90)),
        Region((7, 7), (0, 5)),
    ]
    for region, found in zip(regions, store.read("w", regions), strict=True):
        assert np.array_equal(found, value[region.slices])


@given(data=st.data(), layout=st.sampled_from([(True, 3), (False, 3), (True, 2), (False, 2)]))
def test_any_part_of_any_chunked_array_is_that_part(
    data: st.DataObject, layout: tuple[bool, int]
) -> None:
    rank = data.draw(st.integers(0, 3))
    shape = tuple(data.draw(st.lists(st.integers(0, 6), min_size=rank, max_size=rank)))
    chunks = tuple(data.draw(st.integers(1, max(1, n))) for n in shape)
    start = tuple(data.draw(st.integers(0, n)) for n in shape)
    part = tuple(data.draw(st.integers(0, n - s)) for n, s in zip(shape, start, strict=True))
    value = np.random.default_rng(0).integers(0, 2**40, shape)
    with scratch() as path:
        store = Store(path, use_ocdbt=layout[0], zarr_format=layout[1])
        store.write_with_tensorstore("w", value, chunks=chunks)
        region = Region(start, part)
        assert np.array_equal(store.read("w", [region])[0], value[region.slices])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_are_read_in_blocks_that_follow_one_another(
    layout: dict[str, bool], tmp_path: Path
) -> None:
    value = np.random.default_rng(0).integers(0, 2**30, (400, 700), np.int32)
    store = Store(tmp_path / "x", **layout)
    store.write({"w": value}, chunks=(200, 350))
    regions = [whole(value.shape), Region((200, 0), (200, 350)), Region((1, 2), (300, 3))]
    for region in regions:
        for max_bytes in (1, 1 << 17, 1 << 30):
            reader = store.reader()
            (stored,) = reader.layouts([(("w",), "w")])
            read = ArrayRead(("w",), "w", stored, ())
            blocks = list(reader.read_blocks(read, region, max_bytes))
            assert np.array_equal(
                np.concatenate([b.ravel() for b in blocks]), value[region.slices].ravel()
            )
            assert max(block.nbytes for block in blocks) <= max(max_bytes, 1 << 16)
            if len(blocks) == 1:
                assert blocks[0].shape == region.shape


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_read_are_those_of_the_chunks(layout: dict[str, bool], tmp_path: Path) -> None:
    value = np.random.default_rng(0).integers(0, 2**60, (64, 64))
    store = Store(tmp_path / "x", **layout)
    store.write({"w": value, "other": value}, chunks=(2, 64))
    reader = store.reader()
    (stored,) = reader.layouts([(("w",), "w")])
    read = ArrayRead(("w",), "w", stored, (whole(value.shape),))
    assert reader.bytes_read == 0
    asyncio.run(reader.read([read]))
    everything = reader.bytes_read
    assert value.nbytes * 0.9 < everything < value.nbytes * 1.1
    reader.unlimited().read_part(read, Region((3, 0), (4, 1)))
    if (
        stored.is_plain and not layout["use_ocdbt"]
    ):  # its elements, and what lies between two of them
        assert reader.bytes_read == everything + 8 + (64 + 1) * 8 + 8
    else:
        assert reader.bytes_read == pytest.approx(everything * (1 + 3 / 32), rel=0.01)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fill_missing", [False, True])
def test_a_chunk_that_was_never_written_is_an_error_or_zeros(
    fill_missing: bool, layout: dict[str, bool], tmp_path: Path
) -> None:
    value = np.ones((40, 100))
    store = Store(tmp_path / "x", **layout)
    store.write({"w": value}, chunks=(10, 100))
    key = "c/2/0" if store.zarr_format == 3 else "2.0"
    spec = open_store(CheckedDirectory(store.directory)).spec("w")
    ts.KvStore.open(spec).result().write(key, None).result()
    if fill_missing:
        value[20:30] = 0
        assert np.array_equal(store.read("w", fill_missing=True)[0], value)
        return
    with pytest.raises(CorruptionError, match=f"w: chunk 'w/{key}' is missing") as caught:
        store.read("w")
    assert (caught.value.path, caught.value.chunk) == ("w", f"w/{key}")
    found = store.read("w", [Region((0, 0), (20, 100))])
    assert np.array_equal(found[0], value[:20])


def test_a_missing_array_says_what_there_is_of_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "x", use_ocdbt=False)
    store.write({"w": np.ones(3)})
    with pytest.raises(CorruptionError, match=r"v: the array's metadata.*copied completely"):
        store.read("v")
    (tmp_path / "x" / "w" / "zarr.json").unlink()
    with pytest.raises(CorruptionError, match=r"w: the array's metadata.*there is only w/c/0"):
        store.read("w")


@pytest.mark.parametrize("elements", [100, 5000])
def test_more_arrays_than_files_may_be_open_are_read(elements: int, tmp_path: Path) -> None:
    arrays = {str(i): np.full(elements, i) for i in range(300)}
    store = Store(tmp_path / "x", use_ocdbt=False)
    store.write(arrays)
    reader = store.reader()
    layouts = reader.layouts([((name,), name) for name in arrays])
    reads = [
        ArrayRead((name,), name, layout, [whole(layout.shape)])
        for name, layout in zip(arrays, layouts, strict=True)
    ]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    are_open = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (are_open + 100, hard))
    try:
        found = asyncio.run(reader.read(reads))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(
        np.array_equal(value, arrays[r.name]) for r, (value,) in zip(reads, found, strict=True)
    )


def test_once_a_write_has_failed_nothing_more_is_fetched(tmp_path: Path) -> None:
    value = np.zeros(1 << 20)
    asked: list[int] = []

    def fetch(_: Region, __: int) -> Iterator[np.ndarray]:
        asked.append(1)
        raise OSError("gone")

    layout, document = describe_array(
        value.shape, value.shape, value.dtype, zarr_format=3, compress=False
    )
    writer = BatchWriter(WriteOptions(tmp_path, max_bytes=value.nbytes))
    for i in range(200):
        data = DeferredData(value.dtype, fetch)
        shards = [Shard(whole(value.shape), data)]
        writer.add(ArrayWrite(str(i), layout, document, shards, value.dtype, (str(i),)))
    with pytest.raises(StorageError, match="gone"):
        asyncio.run(writer.commit())
    assert len(asked) == 1


@pytest.mark.parametrize("ends", ["cancelled", "loop"])
def test_a_cancelled_write_is_waited_for_without_holding_up_its_loop(
    tmp_path: Path, ends: str
) -> None:
    value = np.zeros(1 << 10)
    fetching, released = threading.Event(), threading.Event()
    seen: list[bool] = []

    def fetch(_: Region, __: int) -> Iterator[np.ndarray]:
        fetching.set()
        seen.append(released.wait(20))  # that the loop goes on while it is waited for
        yield value

    layout, document = describe_array(
        value.shape, value.shape, value.dtype, zarr_format=3, compress=False
    )
    writer = BatchWriter(WriteOptions(tmp_path))
    shards = [Shard(whole(value.shape), DeferredData(value.dtype, fetch))]
    writer.add(ArrayWrite("a", layout, document, shards, value.dtype, ("a",)))

    async def main() -> None:
        task = asyncio.create_task(writer.commit())
        await asyncio.to_thread(fetching.wait)
        asyncio.get_running_loop().call_later(0.2, released.set)
        if ends == "loop":  # which cancels what is left, and waits for it
            return
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == [True]

    asyncio.run(main())
    assert seen == [True]
    assert list(tmp_path.rglob("*manifest*")) == []


def test_an_empty_batch_is_a_store_without_keys(tmp_path: Path) -> None:
    Store(tmp_path / "x").write({})
    assert open_store(CheckedDirectory(tmp_path / "x")).find("w/zarr.json") is None


def test_values_are_aligned_for_jax(tmp_path: Path) -> None:
    store = Store(tmp_path / "x")
    store.write({str(n): np.ones(n, np.uint8) for n in (1, 7, 1025, 5000)})
    for n in (1, 7, 1025, 5000):
        assert store.read(str(n))[0].ctypes.data % 64 == 0


SMALL = {
    "": np.arange(3.0),
    "b.inline": np.arange(6, dtype=np.int16).reshape(2, 3),
    "a.large": np.arange(300.0),
    "c.view": np.arange(80, dtype=np.uint32).reshape(8, 10)[::2, ::-3],
    "d.fortran": np.asfortranarray(np.arange(2000, dtype=np.float32).reshape(40, 50)),
    "e.bf16": np.arange(700).astype(ml_dtypes.bfloat16),
    "f.bool": np.array([True, False]),
    "g.scalar": np.array(7),
    "h.too_large": np.arange(5000.0),
    "i.more": np.arange(300.0) + 1,
}


@pytest.mark.parametrize("data_file_bytes", [None, 0, 3000])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_arrays_that_are_alike_are_stored_as_single_ones(
    use_ocdbt: bool, zarr_format: int, data_file_bytes: int | None, tmp_path: Path
) -> None:
    options = WriteOptions(
        tmp_path,
        use_ocdbt=use_ocdbt,
        data_file_bytes=data_file_bytes,
        chunks_have_checksums=zarr_format == 3,
    )
    writer = BatchWriter(options)
    names = {name: f"x.{name}" if name or not use_ocdbt else name for name in SMALL}
    for position, (name, value) in enumerate(SMALL.items()):
        layout, document = describe_array(
            value.shape, value.shape, value.dtype, zarr_format=zarr_format, compress=False
        )
        writer.add_whole(
            WholeArrays(
                layout=layout,
                document=document,
                dtype=value.dtype,
                names=[names[name], f"twin.{name}"],
                values=[value, value.copy()],
                paths=[("x", name), ("twin", name)],
                positions=[position, position + len(SMALL)],
            )
        )
    asyncio.run(writer.commit())
    written = writer.progress.now()
    nbytes = 2 * sum(value.nbytes for value in SMALL.values())
    assert (written.leaves, written.nbytes) == (2 * len(SMALL), nbytes)
    store = Store(tmp_path, use_ocdbt=use_ocdbt, zarr_format=zarr_format)
    for name, value in SMALL.items():
        for stored in (names[name], f"twin.{name}"):
            (found,) = store.read(stored)
            np.testing.assert_array_equal(found, value)


def test_small_arrays_are_written_in_the_order_of_the_tree(tmp_path: Path) -> None:
    writer = BatchWriter(WriteOptions(tmp_path))
    for shape, positions in (((400,), [0, 2, 5]), ((500,), [1, 3, 4])):
        layout, document = describe_array(
            shape, shape, np.dtype(float), zarr_format=3, compress=False
        )
        names = [f"n{position}" for position in positions]
        values = [np.full(shape, float(position)) for position in positions]
        writer.add_whole(
            WholeArrays(
                layout=layout,
                document=document,
                dtype=np.dtype(float),
                names=names,
                values=values,
                paths=[(name,) for name in names],
                positions=positions,
            )
        )
    asyncio.run(writer.commit())
    index = read_index(tmp_path)
    places = {key: value for key, value in index.items() if isinstance(value, Extent)}
    by_offset = sorted(places, key=lambda key: places[key].offset)
    assert by_offset == [f"n{i}/c/0" for i in range(6)]
