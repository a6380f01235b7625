"""Type handlers with one bug each, and the tests that must find it; see `test_seeded_bugs.py`."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from orbit_ckpt.metadata import ArrayMetadata, Metadata
from orbit_ckpt.testing import TypeHandlerContract
from orbit_ckpt.type_handlers import ArrayHandler, NumpyHandler, TypeHandler
from tests.support import put


class BrokenNumpy(TypeHandlerContract):
    """Tests of a broken handler of NumPy arrays."""

    broken: type[TypeHandler]

    @override
    def handler(self) -> Any:
        return self.broken()

    @override
    def values(self) -> list[object]:
        return [np.arange(12.0), np.arange(300) * 2, np.array(2.5), np.zeros((0, 3), np.int16)]


class SinglePrecision(NumpyHandler):
    @override
    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return [np.asarray(v, np.float32) for v in await super().deserialize(infos, args)]


class TestWrongDtype(BrokenNumpy):
    """What is loaded is what was saved: types, dtypes, shapes, shardings, bits."""

    broken = SinglePrecision


class Flat(NumpyHandler):
    @override
    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return [np.atleast_1d(v) for v in await super().deserialize(infos, args)]


class TestLostShape(BrokenNumpy):
    """What is loaded is what was saved: types, dtypes, shapes, shardings, bits."""

    broken = Flat


class Aliasing(NumpyHandler):
    @override
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return await super().serialize(values, infos, args)

    @override
    def snapshot(self, values: Any) -> Any:
        return [value[...] for value in values]


class TestAliasing(BrokenNumpy):
    """A background save stores the values of its start, whatever happens to them afterwards."""

    broken = Aliasing


class Sorting(NumpyHandler):
    @override
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        for value in values:
            value[...] = np.sort(value, axis=None)[::-1].reshape(value.shape)
        return await super().serialize(values, infos, args)


class TestChangedArgument(BrokenNumpy):
    """A save does not change what it is given."""

    broken = Sorting


class Salted(NumpyHandler):
    @override
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        (infos[0].parent_dir / "salt.txt").write_text(secrets.token_hex())
        return await super().serialize(values, infos, args)


class TestNotDeterministic(BrokenNumpy):
    """Two saves of the same values store the same data."""

    broken = Salted


class Logging(NumpyHandler):
    @override
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        Path("saves.log").write_text(str(len(values)))  # noqa: ASYNC240 - a bug of its own
        return await super().serialize(values, infos, args)


class TestWritesElsewhere(BrokenNumpy):
    """A save writes into its own directory only."""

    broken = Logging


class Cached(NumpyHandler):
    kept: ClassVar[dict[str, Any]] = {}

    @override
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        self.kept.update({info.name: np.copy(v) for v, info in zip(values, infos, strict=True)})
        return await super().serialize(values, infos, args)

    @override
    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return [np.copy(self.kept[info.name]) for info in infos]


class TestStateInTheHandler(BrokenNumpy):
    """A checkpoint depends on its files alone, not on other saves or on its path."""

    broken = Cached


class Shared(NumpyHandler):
    cache: ClassVar[dict[Path, Any]] = {}

    @override
    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        for info, value in zip(infos, await super().deserialize(infos, args), strict=True):
            self.cache.setdefault(info.path, value)
        return [self.cache[info.path] for info in infos]


class TestSharedResult(BrokenNumpy):
    """What a load returned may be changed, and later loads return what was saved."""

    broken = Shared


class Untrue(NumpyHandler):
    @override
    async def metadata(self, infos: Any) -> Any:
        return [
            ArrayMetadata(info.name, info.parent_dir, (1,), None, np.dtype(np.int8))
            for info in infos
        ]


class TestUntrueMetadata(BrokenNumpy):
    """Metadata describes every leaf as a load returns it, and reads no value."""

    broken = Untrue


class Eager(NumpyHandler):
    @override
    async def metadata(self, infos: Any) -> Any:
        await self.deserialize(infos)
        return await super().metadata(infos)


class TestMetadataThatReads(BrokenNumpy):
    """Metadata describes every leaf as a load returns it, and reads no value."""

    broken = Eager


class Greedy(NumpyHandler):
    @override
    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        await super().deserialize(infos, args)
        return await super().deserialize(infos, args)

    @override
    def plan_reads(self, infos: Any, args: Any = None) -> Any:
        return super().plan_reads(infos, args)


class TestReadsTwice(BrokenNumpy):
    """A plan lists every leaf, and a load reads no more than its plan says."""

    broken = Greedy


class Unnamed(NumpyHandler):
    @override
    def typestr(self) -> str:
        return f"numpy_{secrets.token_hex()}"


class TestUnstableTypestr(BrokenNumpy):
    """The typestr of a handler is a non-empty text, and the same for every handler."""

    broken = Unnamed


class Unplaced(ArrayHandler):
    @override
    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        return [jnp.asarray(np.asarray(v)) for v in await super().deserialize(infos, args)]


class TestIgnoredSharding(BrokenNumpy):
    """A leaf of a target is restored with its type, dtype, shape and sharding."""

    broken = Unplaced

    @override
    def values(self) -> list[object]:
        return [put(np.arange(8.0, dtype=np.float32), "x", x=8), jnp.arange(8)]


@dataclass
class Point:
    x: float
    y: float


class PointFiles:
    """Stores points in files of their own, which nothing checks when they are read."""

    def typestr(self) -> str:
        return "point"

    async def metadata(self, infos: Any) -> Any:
        return [Metadata(info.name, info.parent_dir) for info in infos]

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        del args
        for value, info in zip(values, infos, strict=True):
            self.write(info.parent_dir / f"{info.name}.txt", f"{value.x} {value.y}")
        return []

    def write(self, file: Any, text: str) -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        del args
        return [self.read(info.parent_dir / f"{info.name}.txt") for info in infos]

    def read(self, file: Any) -> Point:
        x, y = file.read_text().split()
        return Point(float(x), float(y))

    def finalize(self, directory: Any) -> None:
        pass


class BrokenPoints(BrokenNumpy):
    """Tests of a broken handler of points."""

    @override
    def values(self) -> list[object]:
        return [Point(1.25, 2.5), Point(3.125, 4.0)]


class Silent(PointFiles):
    @override
    def write(self, file: Any, text: str) -> None:
        with contextlib.suppress(OSError):
            super().write(file, text)


class TestSwallowedError(BrokenPoints):
    """A save whose write fails raises an error and keeps the checkpoint before it."""

    broken = Silent


class Unrenamed(PointFiles):
    """Writes temporary files, and forgets that finalize has to rename them."""

    @override
    def write(self, file: Any, text: str) -> None:
        super().write(file.with_suffix(".tmp"), text)


class TestForgottenFinalize(BrokenPoints):
    """What is loaded is what was saved: types, dtypes, shapes, shardings, bits."""

    broken = Unrenamed


class Writeless(PointFiles):
    @override
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return []


class TestForgottenWrite(BrokenPoints):
    """A checkpoint as it was saved is intact, and holds all of its leaves."""

    broken = Writeless


class Wholesale(PointFiles):
    @override
    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        found = {file.stem: self.read(file) for file in infos[0].parent_dir.glob("*.txt")}
        return [found[info.name] for info in infos]


class TestReadsEverything(BrokenPoints):
    """A load of one leaf reads the files of no other leaf."""

    broken = Wholesale
