"""`diff(values=True)`: values of two checkpoints, whatever their layouts, within a budget."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays import memory
from orbit_ckpt._src.arrays.compare import ValueChange, choose_arithmetic, compare_values
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.metadata.values import Metadata
from orbit_ckpt._src.pytree.compare import array_pairs as pairing
from orbit_ckpt._src.pytree.compare.trees import compare_checkpoints
from orbit_ckpt._src.runtime.futures import Future
from orbit_ckpt._src.storage import store_path
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ChunkReader
from orbit_ckpt._src.storage.layout import Extent, Value
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.region_stream import RegionStream
from orbit_ckpt._src.tree.keypath import KeyPath
from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs, SaveArgs
from orbit_ckpt._src.type_handlers.registry import create_type_handler_registry
from orbit_ckpt.errors import CorruptionError
from tests.cells import cells
from tests.soak import SOAK
from tests.support import LAYOUTS, checkpointer, put, scratch, unpack

NAN = np.nan
NOISE = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)


def save(path: Path, tree: Any, *, chunk_bytes: int | None = None, **options: Any) -> None:
    """Save a tree in a layout, cut into small chunks if that is asked for."""
    save_args = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=chunk_bytes), tree)
    args = ocp.args.PyTreeSave(tree, save_args if chunk_bytes else None)
    checkpointer(**options).save(path, args=args)


def values_of(found: ocp.CheckpointDiff) -> dict[str, ValueChange | None]:
    return {c.path: c.values for c in found.changed if c.what == "values"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_of_every_kind_of_leaf_are_compared(layout: dict[str, bool], tmp_path: Path) -> None:
    a = {
        "f32": NOISE,
        "bf16": jnp.arange(8, dtype=jnp.bfloat16),
        "int4": jnp.arange(4, dtype=jnp.int4),
        "foreign": np.arange(4).astype(ml_dtypes.float8_e4m3),
        "nan": np.array([NAN, 1.0, NAN]),
        "date": np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"),
        "key": jax.random.key(0),
        "keys": jax.random.split(jax.random.key(0, impl="rbg"), 3),
        "int": 2**62,
        "bool": True,
        "text": "left",
        "bytes": b"abc",
        "same": np.arange(5),
        "complex": 3 + 4j,
        "nothing": np.zeros((0, 3)),
    }
    b = {
        "f32": NOISE + np.eye(64, 48, dtype=np.float32)[::-1] * 3,
        "bf16": jnp.arange(8, dtype=jnp.bfloat16).at[5].set(7),
        "int4": jnp.arange(4, dtype=jnp.int4).at[1].set(-7),
        "foreign": np.array([0, 1, 2, 5]).astype(ml_dtypes.float8_e4m3),
        "nan": np.array([NAN, NAN, 1.0]),
        "date": np.array(["2020-01-01", "2020-02-02"], "datetime64[D]"),
        "key": jax.random.key(1),
        "keys": jax.random.split(jax.random.key(0, impl="rbg"), 4)[1:],
        "int": 2**62 + 1,
        "bool": False,
        "text": "right",
        "bytes": b"axc",
        "same": np.arange(5),
        "complex": 0j,
        "nothing": np.zeros((0, 3)),
    }
    save(tmp_path / "a", a, **layout)
    save(tmp_path / "b", b, **layout)
    found = ocp.diff(tmp_path / "a", tmp_path / "b", values=True)
    details = {change.path: change.detail for change in found.changed}
    assert details.pop("f32").startswith("48 of 3072 differ, max |a - b| 3.0000001 at [")
    assert details == {
        "bf16": "1 of 8 differ, max |a - b| 2 at [5] (5 -> 7)",
        "int4": "1 of 4 differ, max |a - b| 8 at [1] (1 -> -7)",
        "foreign": "1 of 4 differ, max |a - b| 2 at [3] (3 -> 5)",
        "nan": "2 of 3 differ, first at [1] (1 -> nan), 2 NaN in one only",
        "date": "1 of 2 differ, max |a - b| 31 at [1] (2020-01-02 -> 2020-02-02)",
        "key": "1 of 1 differ, first at []",
        "keys": "3 of 3 differ, first at [0]",
        "int": "4611686018427387904 -> 4611686018427387905",
        "bool": "True -> False",
        "text": "'left' -> 'right'",
        "bytes": "1 of 3 differ, max |a - b| 22 at [1] (98 -> 120)",
        "complex": "3+4j -> 0+0j",
    }
    assert not found.notes


def test_values_are_compared_across_dtypes_kinds_and_libraries(tmp_path: Path) -> None:
    bf16 = jnp.asarray(NOISE, jnp.bfloat16)
    ocp.save(tmp_path / "a", {"w": NOISE, "n": np.arange(3), "step": 7, "d": np.zeros(2)})
    ocp.save(
        tmp_path / "b",
        {"w": bf16, "n": jnp.arange(3.0), "step": np.array(8), "d": np.array(["NaT"] * 2, "M8[s]")},
    )
    found = ocp.diff(tmp_path / "a", tmp_path / "b", values=True)
    expected = np.abs(NOISE.astype(np.float64) - np.asarray(bf16).astype(np.float64))
    w = values_of(found)["w"]
    assert w is not None
    assert w.max_abs_difference == expected.max()
    assert w.index == np.unravel_index(expected.argmax(), expected.shape)
    assert [(change.path, change.what) for change in found.changed] == [
        ("d", "dtype"),
        ("n", "dtype"),
        ("step", "kind"),
        ("step", "values"),
        ("w", "dtype"),
        ("w", "values"),
    ]
    notes = {(note.path, note.what): note.detail for note in found.notes}
    assert notes["n", "values"] == "all 3 equal, as float64"


GRIDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"chunk_bytes": 1000}),
    ({"chunk_bytes": 700}, {"chunk_bytes": 1000}),
    ({"spec": ("x",)}, {"spec": (None, "x")}),
    ({"spec": ("x",)}, {}),
    ({}, {"spec": (None, "x")}),
    ({"spec": ("x", "y")}, {"spec": (None, "x"), "chunk_bytes": 300}),
]


def save_grid(path: Path, value: np.ndarray, grid: dict[str, Any], layout: dict[str, bool]) -> None:
    axes = {"x": 4, "y": 2} if "y" in grid.get("spec", ()) else {"x": 8}
    leaf = put(value, *grid["spec"], **axes) if "spec" in grid else value
    save(path, {"w": leaf}, chunk_bytes=grid.get("chunk_bytes"), **layout)


SavedGrid = Callable[[np.ndarray, dict[str, Any], dict[str, bool]], Path]


@pytest.fixture(scope="module")
def saved_grid(tmp_path_factory: pytest.TempPathFactory) -> SavedGrid:
    """Return what saves an array once for all tests, which change nothing of it."""
    saved: dict[tuple[bytes, str], Path] = {}

    def path_of(value: np.ndarray, grid: dict[str, Any], layout: dict[str, bool]) -> Path:
        key = value.tobytes(), str((grid, layout))
        if key not in saved:
            saved[key] = tmp_path_factory.mktemp("grid") / "checkpoint"
            save_grid(saved[key], value, grid, layout)
        return saved[key]

    return path_of


BUDGETS = (200, 4000, 50_000, 1 << 28)

CUTS = [
    pytest.param(*layout.values, grids, max_bytes, id=f"{layout.id}-{grids}-{max_bytes}")
    for i, layout in enumerate(LAYOUTS)
    for j, grids in enumerate(GRIDS)
    for k, max_bytes in enumerate(BUDGETS)
    if SOAK or (i + j + k) % len(BUDGETS) == 0
]
"""In a usual run every two of layout, grids and budget meet; under `nox -s soak` all three."""


@pytest.mark.parametrize(
    ("layout", "grids", "max_bytes"),
    cells(CUTS, lambda layout: layout["use_ocdbt"] == layout["use_zarr3"]),
)
def test_chunks_may_be_cut_differently_and_the_budget_be_small(
    layout: dict[str, bool], grids: tuple[Any, Any], max_bytes: int, saved_grid: SavedGrid
) -> None:
    other = NOISE.copy()
    other[::7, ::5] += np.arange(100, dtype=np.float32).reshape(10, 10)
    other[3, 3] = NAN
    first, second = (saved_grid(NOISE, grids[0], layout), saved_grid(other, grids[1], layout))
    found = ocp.diff(first, second, values=True, max_bytes=max_bytes)
    arithmetic = choose_arithmetic(NOISE.dtype, NOISE.dtype)
    assert arithmetic is not None
    assert values_of(found) == {"w": compare_values(NOISE, other, arithmetic)}


@pytest.mark.parametrize("grids", GRIDS, ids=str)
def test_too_many_decompressors_are_avoided_by_reading_chunks_again(
    grids: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairing, "_MAX_DECODER_BYTES", 0)
    monkeypatch.setattr(RegionStream, "next", None)
    value = np.tile(NOISE, (2, 1))  # what is smaller is not compressed
    save_grid(tmp_path / "a", value, grids[0], {})
    save_grid(tmp_path / "b", value + np.eye(128, 48, dtype=np.float32), grids[1], {})
    found = ocp.diff(tmp_path / "a", tmp_path / "b", values=True, max_bytes=5000)
    change = values_of(found)["w"]
    assert change is not None
    assert change.differing == 48


@pytest.mark.parametrize("max_bytes", [200, 1 << 28])
@pytest.mark.parametrize("variant", ["sharded-files-zarr2", "sharded-ocdbt-zarr2"])
def test_chunks_that_tensorstore_decodes_are_compared(
    variant: str, max_bytes: int, tmp_path: Path
) -> None:
    unpack("orbax-0.2.7.tar.gz", tmp_path)
    tree = {name: np.asarray(leaf) for name, leaf in ocp.load(tmp_path / variant).items()}
    ocp.save(tmp_path / "same", tree)
    assert not ocp.diff(tmp_path / variant, tmp_path / "same", values=True, max_bytes=max_bytes)
    changed = {name: tree[name].copy() for name in ("split_16896_bytes", "split_zeros")}
    for value in changed.values():
        value[-1] += 1
    ocp.save(tmp_path / "other", tree | changed)
    found = ocp.diff(tmp_path / variant, tmp_path / "other", values=True, max_bytes=max_bytes)
    differing = {path: change and change.differing for path, change in values_of(found).items()}
    assert differing == {name: value[-1].size for name, value in changed.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_keys_are_never_cut(layout: dict[str, bool], tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 10)
    save(tmp_path / "a", {"k": keys, "none": keys[:0]}, **layout)
    others = jnp.concatenate([keys[:7], keys[:3]])
    save(tmp_path / "b", {"k": others, "none": keys[:0]}, **layout)
    for max_bytes in (1, 100, 1 << 28):
        found = ocp.diff(tmp_path / "a", tmp_path / "b", values=True, max_bytes=max_bytes)
        assert values_of(found) == {
            "k": ValueChange(10, 3, index=(7,), has_same_bits=False),
        }


@pytest.mark.parametrize("max_bytes", [1 << 14, 1 << 20])
@pytest.mark.parametrize("grids", GRIDS, ids=str)
def test_no_chunk_is_read_twice(
    grids: tuple[Any, Any], max_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[tuple[int, str]] = Counter()
    find, find_all = ChunkReader.find, ChunkReader.find_all

    def count(reader: ChunkReader, keys: Sequence[str]) -> None:
        reads.update((id(reader), key) for key in keys if "/c/" in key)

    def counted(self: ChunkReader, path: KeyPath, key: str) -> Value | None:
        count(self, [key])
        return find(self, path, key)

    def all_counted(
        self: ChunkReader, paths: Sequence[KeyPath], keys: Sequence[str]
    ) -> list[Value | None]:
        count(self, keys)
        return find_all(self, paths, keys)

    monkeypatch.setattr(ChunkReader, "find", counted)
    monkeypatch.setattr(ChunkReader, "find_all", all_counted)
    layout = {"use_compression": False}
    save_grid(tmp_path / "a", NOISE, grids[0], layout)
    save_grid(tmp_path / "b", NOISE, grids[1], layout)
    assert not ocp.diff(tmp_path / "a", tmp_path / "b", values=True, max_bytes=max_bytes)
    assert reads
    assert set(reads.values()) == {1}


@pytest.mark.parametrize("many", [False, True])
def test_small_leaves_are_read_together_and_large_ones_apart(
    many: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {f"w{i:03}": np.full(16, i, np.float32) for i in range(500)}
    save(tmp_path / "a", tree)
    sizes: list[int] = []
    original = BatchReader.read

    async def read(self: BatchReader, reads: Sequence[Any]) -> Any:
        sizes.append(sum(read.nbytes for read in reads))
        return await original(self, reads)

    monkeypatch.setattr(BatchReader, "read", read)
    budget = 1 << 28 if many else 8000
    assert not ocp.diff(tmp_path / "a", tmp_path / "a", values=True, max_bytes=budget)
    assert sum(sizes) == 2 * 500 * 64
    assert len(sizes) == 2 if many else 2 * max(sizes) <= budget // 2


def peak_of_diff(a: Path, b: Path, max_bytes: int) -> tuple[ocp.CheckpointDiff, int]:
    """Return the difference and the most bytes that Python, numpy and zstd held at once."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = ocp.diff(a, b, values=True, max_bytes=max_bytes)
        return found, tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("use_compression", [True, False])
@pytest.mark.parametrize("use_ocdbt", cells([True, False], bool))
def test_memory_stays_within_the_budget_whatever_the_size_of_chunks(
    use_ocdbt: bool, use_compression: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "HUGE_PAGE_BYTES", 1 << 60)  # what the system maps is not traced
    monkeypatch.setattr(store_path, "_BLOCK_BYTES", 1 << 18)
    budget = 2 << 20
    value = np.random.default_rng(0).random((4096, 1024), np.float32)
    other = value.copy()
    other[4000, 1000] = 99
    options = {"use_ocdbt": use_ocdbt, "use_compression": use_compression}
    save(tmp_path / "whole", {"w": value}, **options)
    save(tmp_path / "other", {"w": other}, **options)
    save(tmp_path / "columns", {"w": put(other, None, "x", x=8)}, **options)
    save(tmp_path / "small", {"w": other}, chunk_bytes=1 << 18, **options)
    del other
    for name in ("other", "columns", "small"):
        found, peak = peak_of_diff(tmp_path / "whole", tmp_path / name, budget)
        change = values_of(found)["w"]
        assert change is not None
        assert (change.differing, change.index, change.b) == (1, (4000, 1000), 99.0)
        # a megabyte for each of nine decompressors and for one whose thread has just ended, or
        # a block and its bytes for each of two
        decompressors = 10 << 20 if name == "columns" else 4 << 20
        allowed = 2 * budget + decompressors * use_compression
        assert peak < allowed < value.nbytes, name


@pytest.mark.parametrize("max_bytes", [1 << 12, 1 << 28])
@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_damage_is_told_with_the_leaf_and_the_checkpoint(
    use_ocdbt: bool, side: str, max_bytes: int, tmp_path: Path
) -> None:
    for name in "ab":
        save(tmp_path / name, {"p": {"w": NOISE}}, use_ocdbt=use_ocdbt)
    key = "p.w/c/0/0"
    value = read_index(tmp_path / side)[key] if use_ocdbt else Extent("", 0, NOISE.nbytes // 2)
    assert isinstance(value, Extent)
    file = Path(value.file) if use_ocdbt else tmp_path / side / key
    data = bytearray(file.read_bytes())
    data[value.offset + value.length // 2] ^= 1
    file.write_bytes(data)
    assert not ocp.diff(tmp_path / "a", tmp_path / "b")
    with pytest.raises(CorruptionError, match=rf"p/w: .*{key}.* is damaged") as caught:
        ocp.diff(tmp_path / "a", tmp_path / "b", values=True, max_bytes=max_bytes)
    assert caught.value.path == "p/w"
    assert caught.value.__notes__[0] == f"This is about the checkpoint at {tmp_path / side}."
    file.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        ocp.diff(tmp_path / "a", tmp_path / "b", values=True, max_bytes=max_bytes)


def test_nothing_is_put_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.enable_x64(True):
        tree = {"w": put(np.arange(8.0), "x", x=8), "wide": jnp.arange(3), "k": jax.random.key(0)}
        ocp.save(tmp_path / "a", tree)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a device was used")

    for name in ("device_put", "make_array_from_callback", "devices", "local_devices"):
        monkeypatch.setattr(jax, name, refuse)
    assert not ocp.diff(tmp_path / "a", tmp_path / "a", values=True)


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_the_budget_must_be_positive(max_bytes: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_bytes must be at least 1"):
        ocp.diff(tmp_path, tmp_path, values=True, max_bytes=max_bytes)


class Brush:
    """A leaf of which only its own handler knows anything."""

    def __init__(self, color: str) -> None:
        self.color = color

    def __eq__(self, other: object) -> bool:
        if self.color == "none":
            raise ValueError("has no color")
        return isinstance(other, Brush) and self.color == other.color

    def __hash__(self) -> int:
        return hash(self.color)

    def __repr__(self) -> str:
        return f"Brush({self.color})"


class BrushHandler:
    def typestr(self) -> str:
        return "brush"

    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[Metadata]:
        return [Metadata(info.name, info.parent_dir) for info in infos]

    async def serialize(
        self,
        values: Sequence[object],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,
    ) -> Sequence[Future]:
        del args
        for value, info in zip(values, infos, strict=True):
            assert isinstance(value, Brush)
            (info.parent_dir / f"{info.name}.brush").write_text(value.color)
        return []

    async def deserialize(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[object]:
        del args
        return [Brush((info.parent_dir / f"{info.name}.brush").read_text()) for info in infos]

    def finalize(self, directory: Path) -> None:
        del directory


def test_leaves_of_other_handlers_are_compared_as_they_compare_themselves(tmp_path: Path) -> None:
    registry = create_type_handler_registry((Brush, BrushHandler()))
    colors = {"a": ("red", "red", "none"), "b": ("red", "blue", "none")}
    for name, (x, y, z) in colors.items():
        tree = {"x": Brush(x), "y": Brush(y), "z": Brush(z), "n": 1}
        checkpointer(type_handler_registry=registry).save(tmp_path / name, tree)
    found = compare_checkpoints(
        tmp_path / "a", tmp_path / "b", registry, values=True, max_bytes=1 << 20
    )
    assert [(change.path, change.what, change.detail) for change in found.changed] == [
        ("y", "values", "Brush(red) -> Brush(blue)"),
        ("z", "values", "Brush(none) -> Brush(none)"),
    ]


DTYPES = ["bool", "int8", "uint64", "int64", "bfloat16", "float16", "float32", "complex64", "int4"]


@st.composite
def arrays(draw: st.DrawFn, shape: Shape) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 3)))
    return rng.integers(0, 3, shape).astype(dtype)


@st.composite
def array_pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    return draw(arrays(shape)), draw(arrays(shape))


stored = st.fixed_dictionaries(
    {
        "use_ocdbt": st.booleans(),
        "use_zarr3": st.booleans(),
        "chunk_bytes": st.sampled_from([None, 16, 40, 200]),
    }
)


@pytest.mark.slow
@given(array_pairs(), stored, stored, st.integers(1, 5000))
def test_the_largest_difference_is_that_of_numpy(
    pair: tuple[np.ndarray, np.ndarray], first: Any, second: Any, max_bytes: int
) -> None:
    a, b = pair
    with scratch() as path:
        save(path.with_name("a"), {"w": a}, **first)
        save(path.with_name("b"), {"w": b}, **second)
        found = ocp.diff(path.with_name("a"), path.with_name("b"), values=True, max_bytes=max_bytes)
    change = values_of(found).get("w")
    distance = np.abs(a.astype(np.complex128) - b.astype(np.complex128))
    assert (change is not None) == bool(distance.any())
    assert found.is_same == (a.dtype == b.dtype and not distance.any())
    if change is not None:
        assert change.differing == np.count_nonzero(distance)
        assert change.max_abs_difference == pytest.approx(distance.max())
        assert change.index == np.unravel_index(distance.argmax(), a.shape)


def test_what_is_too_large_for_the_budget_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed: list[Shape] = []
    original = RegionStream.next

    def following(self: RegionStream, region: Any) -> Any:
        streamed.append(region.shape)
        return original(self, region)

    monkeypatch.setattr(RegionStream, "next", following)
    save(tmp_path / "a", {"w": NOISE, "small": np.arange(3)})
    assert not ocp.diff(tmp_path / "a", tmp_path / "a", values=True)
    assert not streamed
    save(tmp_path / "b", {"w": NOISE, "small": np.arange(3)}, use_compression=False)
    assert not ocp.diff(tmp_path / "b", tmp_path / "b", values=True, max_bytes=8 * 48 * 16)
    assert streamed == [(4, 48)] * 2 * 16
