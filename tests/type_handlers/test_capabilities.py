"""Type handlers derived from built-in ones, and what generic code makes of their leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt import type_handlers
from orbit_ckpt._src.arrays.transfer import shards_of
from orbit_ckpt._src.metadata.values import Metadata
from orbit_ckpt._src.type_handlers import registry as registry_module
from orbit_ckpt._src.type_handlers.array_io import add_array, read_each
from orbit_ckpt.errors import CorruptionError, UnsupportedLeafError
from tests.support import LAYOUTS, assert_same_tree, checkpointer, damage_chunk


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    """Register in the default registry for one test only."""
    with type_handlers.GLOBAL_TYPE_HANDLER_REGISTRY.scope():
        yield


class PlainArrays(type_handlers.ArrayHandler):
    pass


class PlainNumpy(type_handlers.NumpyHandler):
    pass


class PlainScalars(type_handlers.ScalarHandler):
    pass


class PlainStrings(type_handlers.StringHandler):
    pass


SUBCLASSES = [
    (jax.Array, PlainArrays()),
    (jax.Array, type_handlers.SingleReplicaArrayHandler()),
    (np.ndarray, PlainNumpy()),
    (int, PlainScalars()),
    (str, PlainStrings()),
]
TREE = {"j": jnp.arange(300.0), "n": np.arange(400), "i": 3, "s": "text"}


def register_all() -> None:
    for kind, handler in SUBCLASSES:
        type_handlers.register_type_handler(kind, handler, override=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("leaf", ["j", "n"])
def test_verify_finds_damage_of_arrays_whose_handler_is_a_subclass(
    leaf: str, layout: dict[str, Any], tmp_path: Path
) -> None:
    register_all()
    checkpointer(**layout, use_compression=False).save(tmp_path / "x", TREE)
    report = ocp.verify(tmp_path / "x")
    assert report.is_intact
    assert report.chunks == 3
    assert not report.unchecked or not layout["use_zarr3"]
    key = f"{leaf}/c/0" if layout["use_zarr3"] else f"{leaf}/0"
    damage_chunk(tmp_path / "x", key)
    assert not ocp.verify(tmp_path / "x").is_intact
    with pytest.raises(CorruptionError):
        ocp.copy(tmp_path / "x", tmp_path / "copy")


def test_diff_shares_the_arrays_of_subclasses(tmp_path: Path) -> None:
    register_all()
    ocp.save(tmp_path / "a", TREE)
    ocp.save(tmp_path / "b", {**TREE, "j": TREE["j"].at[7].set(-1)})
    found = ocp.diff(tmp_path / "a", tmp_path / "b", values=True)
    assert [(change.path, change.what) for change in found.changed] == [("j", "values")]


@pytest.mark.parametrize("leaf", ["j", "n"])
def test_lazy_arrays_of_subclasses_are_not_read(leaf: str, tmp_path: Path) -> None:
    register_all()
    ocp.save(tmp_path / "x", TREE)
    damage_chunk(tmp_path / "x", f"{leaf}/c/0")
    lazy = ocp.load(tmp_path / "x", lazy=True)[leaf]
    assert isinstance(lazy, ocp.LazyArray)
    with pytest.raises(CorruptionError):
        lazy.get()


def test_trees_of_subclasses_round_trip_in_every_way(tmp_path: Path) -> None:
    register_all()
    ocp.save(tmp_path / "x", TREE)
    assert_same_tree(ocp.load(tmp_path / "x"), TREE)
    handle = ocp.save_async(tmp_path / "y", TREE)
    handle.result()
    assert_same_tree(ocp.load(tmp_path / "y"), TREE)
    lazy = ocp.load(tmp_path / "x", lazy=True)
    assert_same_tree(lazy["j"].get(), TREE["j"])
    ocp.save(tmp_path / "z", lazy)
    assert_same_tree(ocp.load(tmp_path / "z"), TREE)


class Encrypted(type_handlers.ArrayHandler):
    """Stores other values than those of the leaves."""

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return await super().serialize([value + 1 for value in values], infos, args)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return [value - 1 for value in await super().deserialize(infos, args)]


class EncryptedNumpy(type_handlers.NumpyHandler):
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return await super().serialize([value + 1 for value in values], infos, args)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        found: Any = await super().deserialize(infos, args)
        return [value - 1 for value in found]


def register_encrypted() -> None:
    type_handlers.register_type_handler(jax.Array, Encrypted(), override=True)
    type_handlers.register_type_handler(np.ndarray, EncryptedNumpy(), override=True)


SECRET = {"j": jnp.arange(300), "n": np.arange(400)}


@pytest.mark.parametrize("leaf", ["j", "n"])
def test_chunks_of_a_handler_that_stores_other_values_are_verified(
    leaf: str, tmp_path: Path
) -> None:
    register_encrypted()
    ocp.save(tmp_path / "x", SECRET)
    report = ocp.verify(tmp_path / "x")
    assert report.is_intact
    assert report.chunks == 2
    damage_chunk(tmp_path / "x", f"{leaf}/c/0")
    assert not ocp.verify(tmp_path / "x").is_intact


@pytest.mark.parametrize(
    "load",
    [
        ocp.load,
        lambda path: ocp.load(path, lazy=True),
        lambda path: ocp.load(path, like=SECRET),
        lambda path: checkpointer().restore(
            path,
            restore_args={
                "j": ocp.ArrayRestoreArgs(),
                "n": ocp.RestoreArgs(restore_type=np.ndarray),
            },
        ),
    ],
    ids=["load", "lazy", "like", "args"],
)
def test_values_of_a_handler_that_stores_other_values_come_from_it(
    load: Any, tmp_path: Path
) -> None:
    register_encrypted()
    ocp.save(tmp_path / "x", SECRET)
    assert_same_tree(load(tmp_path / "x"), SECRET)


def test_a_jax_array_of_such_a_handler_is_restored_for_numpy_by_it(tmp_path: Path) -> None:
    register_encrypted()
    ocp.save(tmp_path / "x", SECRET)
    args = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in SECRET}
    found = checkpointer().restore(tmp_path / "x", restore_args=args)
    assert_same_tree(found, {name: np.asarray(value) for name, value in SECRET.items()})


def test_diff_compares_the_values_of_such_a_handler_not_what_is_stored(tmp_path: Path) -> None:
    ocp.save(tmp_path / "plain", SECRET)
    register_encrypted()
    ocp.save(tmp_path / "x", SECRET)
    ocp.save(tmp_path / "y", {**SECRET, "j": SECRET["j"].at[0].set(5)})
    (change,) = ocp.diff(tmp_path / "x", tmp_path / "y", values=True).changed
    assert change.path == "j"
    assert change.values is not None
    assert (change.values.a, change.values.b) == (0, 5)


def test_transforms_are_given_the_values_of_such_a_handler(tmp_path: Path) -> None:
    register_encrypted()
    ocp.save(tmp_path / "x", SECRET)
    rules = [ocp.transform.Map("j", lambda value: value * 10)]
    found = ocp.load(tmp_path / "x", transforms=rules)["j"]
    assert np.asarray(found).tolist() == (np.arange(300) * 10).tolist()


def test_lazy_arrays_are_saved_through_such_a_handler(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", SECRET)
    lazy = ocp.load(tmp_path / "x", lazy=True)
    register_encrypted()
    ocp.save(tmp_path / "y", lazy)
    assert_same_tree(ocp.load(tmp_path / "y"), SECRET)


@dataclass
class Point:
    x: float
    y: float


class PointArrays(type_handlers.NumpyHandler):
    """Orbax's documented way to save a class as an array."""

    def typestr(self) -> str:
        return "point"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return await super().serialize([np.array([v.x, v.y]) for v in values], infos, args)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return [Point(*map(float, v)) for v in await super().deserialize(infos, args)]


class PointDevices(type_handlers.ArrayHandler):
    def typestr(self) -> str:
        return "point"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return await super().serialize([jnp.array([v.x, v.y]) for v in values], infos, args)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return [Point(*map(float, v)) for v in await super().deserialize(infos, args)]


class PointScalars(type_handlers.ScalarHandler):
    def typestr(self) -> str:
        return "point"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return await super().serialize([complex(v.x, v.y) for v in values], infos, args)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        found: Any = await super().deserialize(infos, args)
        return [Point(v.real, v.imag) for v in found]


class PointStrings(type_handlers.StringHandler):
    def typestr(self) -> str:
        return "point"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return await super().serialize([f"{v.x} {v.y}" for v in values], infos, args)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return [Point(*map(float, v.split())) for v in await super().deserialize(infos, args)]


class PointPair(type_handlers.NumpyHandler):
    """Stores a leaf as two arrays, neither of which has its name."""

    length = 3

    def typestr(self) -> str:
        return "point"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        del args
        for value, info in zip(values, infos, strict=True):
            for axis in "xy":
                host = np.linspace(getattr(value, axis), 9, self.length)
                part = info.replace(name=f"{info.name}.{axis}")
                add_array(host.shape, host.dtype, shards_of(host), part, ocp.SaveArgs())
        return []

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        del args
        parts = [info.replace(name=f"{info.name}.{axis}") for info in infos for axis in "xy"]
        found = iter(await read_each(parts, None, lambda host, *_: float(host[0])))
        return [Point(x, next(found)) for x in found]

    async def metadata(self, infos: Any) -> Any:
        return [Metadata(info.name, info.parent_dir) for info in infos]


class PointFiles(type_handlers.NumpyHandler):
    """Stores a leaf in a file of its own."""

    def typestr(self) -> str:
        return "point"

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        del args
        for value, info in zip(values, infos, strict=True):
            info.parent_dir.mkdir(exist_ok=True)
            (info.parent_dir / f"{info.name}.txt").write_text(f"{value.x} {value.y}")
        return []

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        del args
        texts = [(info.parent_dir / f"{info.name}.txt").read_text() for info in infos]
        return [Point(*map(float, text.split())) for text in texts]

    async def metadata(self, infos: Any) -> Any:
        return [Metadata(info.name, info.parent_dir) for info in infos]


class PointElsewhere(PointFiles):
    """Stores nothing in the checkpoint."""

    kept: ClassVar[dict[str, Point]] = {}

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        del args
        self.kept.update({info.name: v for v, info in zip(values, infos, strict=True)})
        return []

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        del args
        return [self.kept[info.name] for info in infos]


POINTS = {"p": Point(1.0, 2.0), "q": [Point(3.0, 4.5)]}
KINDS = [PointArrays, PointDevices, PointScalars, PointStrings, PointPair, PointFiles]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, PointElsewhere])
def test_a_class_is_saved_by_a_handler_that_converts_it(
    kind: Any, background: bool, tmp_path: Path
) -> None:
    type_handlers.register_type_handler(Point, kind())
    tree = {**POINTS, "w": np.arange(3)}
    if background:
        ocp.save_async(tmp_path / "x", tree).result()
    else:
        ocp.save(tmp_path / "x", tree)
    found = ocp.load(tmp_path / "x")
    assert found["w"].tolist() == [0, 1, 2]
    assert {name: found[name] for name in POINTS} == POINTS
    lazy = ocp.load(tmp_path / "x", lazy=True)
    assert {name: lazy[name] for name in POINTS} == POINTS


@pytest.mark.parametrize("kind", [PointArrays, PointDevices, PointPair])
def test_arrays_of_such_a_handler_are_verified(kind: Any, tmp_path: Path) -> None:
    type_handlers.register_type_handler(Point, kind())
    checkpointer(use_ocdbt=False).save(tmp_path / "x", POINTS)
    ocp.save(tmp_path / "y", POINTS)
    report = ocp.verify(tmp_path / "y")
    assert report.is_intact
    assert report.chunks == (4 if kind is PointPair else 2)
    key = "q.0.y/c/0" if kind is PointPair else "p/c/0"
    damage_chunk(tmp_path / "x", key)
    assert not ocp.verify(tmp_path / "x").is_intact


class LargePair(PointPair):
    """Stores arrays that are in data files, not in the index."""

    length = 1000


def test_damage_of_an_array_that_bears_no_leafs_name_is_found(tmp_path: Path) -> None:
    type_handlers.register_type_handler(Point, LargePair())
    ocp.save(tmp_path / "x", POINTS)
    damage_chunk(tmp_path / "x", "q.0.y/c/0")
    assert not ocp.verify(tmp_path / "x").is_intact


@pytest.mark.parametrize("known", [True, False])
def test_files_of_such_a_handler_are_verified(known: bool, tmp_path: Path) -> None:
    type_handlers.register_type_handler(Point, PointFiles())
    ocp.save(tmp_path / "x", POINTS)
    if not known:
        registry_module.GLOBAL_TYPE_HANDLER_REGISTRY.__init__()  # type: ignore[misc]
    report = ocp.verify(tmp_path / "x")
    assert report.is_intact
    assert "2 leaves of other type handlers, not decoded" in str(report)
    (tmp_path / "x" / "p.txt").write_text("9.0 9.0")
    assert not ocp.verify(tmp_path / "x").is_intact


def test_leaves_that_the_checkpoint_does_not_hold_are_not_called_intact(tmp_path: Path) -> None:
    type_handlers.register_type_handler(Point, PointElsewhere())
    ocp.save(tmp_path / "x", POINTS)
    report = ocp.verify(tmp_path / "x")
    assert not report.is_intact
    assert "nothing is stored here for 2 leaves of the type handlers point (p, " in str(report)


@pytest.mark.parametrize("base", [type_handlers.NumpyHandler, type_handlers.ScalarHandler])
def test_what_a_subclass_makes_of_a_leaf_is_checked(base: type, tmp_path: Path) -> None:
    async def serialize(self: Any, values: Any, infos: Any, args: Any = None) -> Any:
        made: Sequence[Any] = [np.array([object()]) for _ in values]
        return await base.serialize(self, made, infos, args)  # type: ignore[attr-defined]

    handler: Any = type("Odd", (base,), {"serialize": serialize, "typestr": lambda _: "odd"})()
    type_handlers.register_type_handler(Point, handler)
    with pytest.raises(UnsupportedLeafError, match=r"Odd makes .*\n  p: dtype object cannot"):
        ocp.save(tmp_path / "x", {"p": Point(1, 2)})


def test_a_value_that_a_built_in_handler_cannot_convert_is_refused_by_name(tmp_path: Path) -> None:
    handler = type("Own", (type_handlers.NumpyHandler,), {"typestr": lambda _: "own"})()
    type_handlers.register_type_handler(Point, handler)
    with pytest.raises(UnsupportedLeafError, match="p: dtype object cannot be stored"):
        ocp.save(tmp_path / "x", {"p": Point(1, 2)})


def test_a_handler_of_an_own_type_does_not_take_a_built_in_name_unasked() -> None:
    class Unnamed(type_handlers.NumpyHandler):
        pass

    with pytest.raises(ValueError, match=r"'np.ndarray' of .*Unnamed is that of NumpyHandler"):
        type_handlers.register_type_handler(Point, Unnamed())
    type_handlers.register_type_handler(Point, Unnamed(), override=True)


def test_a_plan_says_nothing_of_reads_that_it_does_not_know(tmp_path: Path) -> None:
    type_handlers.register_type_handler(Point, PointArrays())
    ocp.save(tmp_path / "x", POINTS)
    assert ocp.plan(tmp_path / "x").bytes_read == 0
