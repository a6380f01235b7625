"""The contract of type handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays.dtypes import is_prng_dtype
from orbit_ckpt._src.runtime.process import ProcessGroup
from orbit_ckpt._src.type_handlers.base import LoadBatch, ParamInfo, TypeHandler
from orbit_ckpt._src.type_handlers.capabilities import ReadPlanner, capability
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY
from orbit_ckpt.testing.placement import place, shardings_of
from orbit_ckpt.testing.promises import expect, promised
from orbit_ckpt.testing.saved import SavedContract
from orbit_ckpt.testing.watching import calls_of, files_below


class TypeHandlerContract(SavedContract):
    """Tests of a type handler.

    Subclass it with a class whose name begins with `Test`, and define `handler` and `values`. All
    other methods have defaults that suit arrays, scalars and dataclasses of them.

    Example:
        ```python
        class TestPointHandler(TypeHandlerContract):
            def handler(self):
                return PointHandler()

            def values(self):
                return [Point(1.0, 2.0), Point(0.0, -0.0)]
        ```
    """

    def handler(self) -> TypeHandler:
        """Return a new handler."""
        raise NotImplementedError

    def values(self) -> Sequence[object]:
        """Return at least two different leaves, newly made and the same every time.

        Include the odd ones: empty, without dimensions, not contiguous, of every dtype.
        """
        raise NotImplementedError

    def types(self) -> Sequence[type]:
        """Return the types to register the handler for; by default those of the values."""
        values = self.values()
        found = dict.fromkeys(jax.Array if isinstance(v, jax.Array) else type(v) for v in values)
        return list(found)

    def targets(self, value: object) -> Sequence[tuple[object, object]]:
        """Return leaves of targets for a value, each with the leaf that a load must return for it.

        By default the value itself and, for JAX arrays, every sharding that `shardings_of` returns.
        """
        if not isinstance(value, jax.Array):
            return [(value, value)]
        return [
            (
                jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding),
                place(value, sharding),
            )
            for sharding in (value.sharding, *shardings_of(value))
        ]

    def facts(self, value: object) -> Mapping[str, object]:
        """Return what `metadata` must report of a value, by the name of the attribute there."""
        if not isinstance(value, jax.Array | np.ndarray | np.generic):
            return {}
        array = cast(jax.Array, value)
        is_native = is_prng_dtype(array.dtype)
        dtype = array.dtype if is_native else array.dtype.newbyteorder("=")
        return {"shape": array.shape, "dtype": dtype}

    @pytest.fixture(autouse=True)
    def registered(self) -> Iterator[TypeHandler]:
        """The handler, in the default registry for one test."""
        handler = self.handler()
        with GLOBAL_TYPE_HANDLER_REGISTRY.scope():
            for ty in self.types():
                GLOBAL_TYPE_HANDLER_REGISTRY.add(ty, handler, override=True)
            yield handler

    @override
    def contents(self) -> Sequence[dict[str, object]]:
        values, others = self.values(), self.values()
        return [_tree(values), _tree([*others[1:], others[0]])]

    @override
    def save(self, path: Path, content: object, *, overwrite: bool = False) -> None:
        ocp.save(path, content, overwrite=overwrite)

    @override
    def save_as_files(self, path: Path, content: object) -> None:
        ocp.PyTreeCheckpointer(use_ocdbt=False).save(path, content)

    @override
    def save_in_background(self, path: Path, content: object) -> Callable[[], object]:
        return ocp.save_async(path, content).result

    @override
    def save_in_group(self, group: ProcessGroup, path: Path, content: object) -> None:
        options = ocp.MultiprocessingOptions(group=group)
        checkpointer = ocp.Checkpointer(ocp.PyTreeHandler(), multiprocessing_options=options)
        checkpointer.save(path, content)

    @override
    def load(self, path: Path) -> object:
        return ocp.load(path)

    @promised
    def test_typestr_is_stable(self) -> None:
        """The typestr of a handler is a non-empty text, and the same for every handler."""
        found = [cast(object, self.handler().typestr()) for _ in range(2)]
        is_text = isinstance(found[0], str) and found[0] != ""
        expect(is_text and found[0] == found[1], found=found, expected="one text, twice")

    @promised
    def test_has_every_method(self, registered: TypeHandler) -> None:
        """A handler has all methods of TypeHandler."""
        names = ("typestr", "metadata", "serialize", "deserialize", "finalize")
        missing = [name for name in names if not callable(getattr(registered, name, None))]
        expect(not missing, found=f"no {', '.join(missing)}", expected="all of them")

    @promised
    def test_leaves_come_back_as_the_target_asks(self, tmp_path: Path) -> None:
        """A leaf of a target is restored with its type, dtype, shape and sharding."""
        for i, value in enumerate(self.values()):
            ocp.save(tmp_path / str(i), {"v": value})
            for target, expected in self.targets(value):
                found = ocp.load(tmp_path / str(i), {"v": target})
                self.expect_same(found, {"v": expected}, f"values()[{i}] restored as {target}")

    @promised
    def test_metadata_is_true(self, registered: TypeHandler, tmp_path: Path) -> None:
        """Metadata describes every leaf as a load returns it, and reads no value."""
        ocp.save(tmp_path / "a", self.contents()[0])
        with calls_of(registered, "deserialize") as reads:
            described = cast(Mapping[str, object], ocp.metadata(tmp_path / "a").tree)
        expect(not reads, found="a call of deserialize", expected="none")
        for name, value in self.contents()[0].items():
            for fact, expected in self.facts(value).items():
                found = getattr(described[name], fact, None)
                same = found is None or found == expected
                expect(same, found=f"{fact} {found} of {name}", expected=expected)

    @promised
    def test_lazy_leaves_are_the_same(self, tmp_path: Path) -> None:
        """Lazy leaves have the values of loaded ones, and can be saved without being read."""
        content = self.contents()[0]
        ocp.save(tmp_path / "a", content)
        lazy = ocp.load(tmp_path / "a", lazy=True)
        values = {k: v.get() if isinstance(v, ocp.LazyArray) else v for k, v in lazy.items()}
        self.expect_same(values, self.contents()[0], "what was loaded lazily")
        ocp.save(tmp_path / "b", ocp.load(tmp_path / "a", lazy=True))
        self.expect_same(ocp.load(tmp_path / "b"), self.contents()[0], "lazy leaves saved again")

    @promised
    def test_verify_finds_it_intact(self, tmp_path: Path) -> None:
        """A checkpoint as it was saved is intact, and holds all of its leaves."""
        ocp.save(tmp_path / "a", self.contents()[0])
        report = ocp.verify(tmp_path / "a")
        expect(report.is_intact, found=report, expected="no damage")

    @promised
    def test_loads_read_what_they_plan(self, registered: TypeHandler, tmp_path: Path) -> None:
        """A plan lists every leaf, and a load reads no more than its plan says."""
        ocp.save(tmp_path / "a", self.contents()[0])
        plan = ocp.plan(tmp_path / "a")
        names = sorted(leaf.name for leaf in plan.leaves)
        expect(names == sorted(self.contents()[0]), found=names, expected="all leaves")
        with calls_of(registered, "deserialize") as calls:
            ocp.load(tmp_path / "a")
        if capability(registered, ReadPlanner) is not None and calls:
            nbytes = _batch_of(calls[0]).reader.bytes_read
            bound = f"at most {plan.bytes_read}"
            expect(nbytes <= plan.bytes_read, found=f"{nbytes} bytes read", expected=bound)

    @promised
    def test_a_load_of_one_leaf_reads_no_other(self, tmp_path: Path) -> None:
        """A load of one leaf reads the files of no other leaf."""
        first, second = self.values()[:2]
        self.save_as_files(tmp_path / "one", {"v0": first})
        self.save_as_files(tmp_path / "two", {"v0": first, "v1": second})
        for name in files_below(tmp_path / "two").keys() - files_below(tmp_path / "one").keys():
            (tmp_path / "two" / name).write_bytes(b"damaged")
        self.expect_same(ocp.load(tmp_path / "two", only="v0"), {"v0": self.values()[0]})

    @promised
    def test_diff_sees_differences_only(self, tmp_path: Path) -> None:
        """Two checkpoints of the same values do not differ, and those of other values do."""
        a, b = self.values()[:2]
        for name, value in (("a", a), ("b", a), ("c", b)):
            ocp.save(tmp_path / name, {"v": value})
        same = ocp.diff(tmp_path / "a", tmp_path / "b", values=True)
        expect(same.is_same, found=f"the difference {same}", expected="none")
        other = ocp.diff(tmp_path / "a", tmp_path / "c", values=True)
        expect(not other.is_same, found=f"no difference of {a} and {b}", expected="one")

    @promised
    def test_finalize_is_called(self, registered: TypeHandler, tmp_path: Path) -> None:
        """A save calls finalize once, after everything is written and before it appears."""
        with calls_of(registered, "finalize") as calls:
            ocp.save(tmp_path / "a", self.contents()[0])
        expect(len(calls) == 1, found=f"{len(calls)} calls", expected="one")
        at = Path(calls[0][0])
        expect(at != tmp_path / "a", found=f"a call for {at}", expected="the unfinished directory")


def _tree(values: Sequence[object]) -> dict[str, object]:
    return {f"v{i}": value for i, value in enumerate(values)}


def _batch_of(call: tuple[Any, ...]) -> LoadBatch:
    """Return what the restore that a call of `deserialize` belongs to shares."""
    info: ParamInfo = call[0][0]
    assert info.load_batch is not None  # noqa: S101 - a restore always sets it
    return info.load_batch
