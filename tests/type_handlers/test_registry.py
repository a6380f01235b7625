from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.type_handlers import builtin
from orbit_ckpt.errors import CorruptionError, PluginConflictError
from orbit_ckpt.type_handlers import (
    GLOBAL_TYPE_HANDLER_REGISTRY,
    TypeHandlerRegistry,
    create_type_handler_registry,
    get_type_handler,
    has_type_handler,
    register_type_handler,
    supported_types,
)
from tests.support import LAYOUTS, checkpointer


@dataclass(frozen=True)
class Point:
    x: int
    y: int


class NamedPoint(Point):
    pass


class Handler:
    """Registered only to be found again."""

    def __init__(self, typestr: str) -> None:
        self._typestr = typestr

    def typestr(self) -> str:
        return self._typestr

    async def metadata(self, infos: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError

    async def serialize(self, values: object, infos: object, args: object = None) -> Sequence[Any]:
        raise NotImplementedError

    async def deserialize(self, infos: object, args: object = None) -> Sequence[object]:
        raise NotImplementedError

    def finalize(self, directory: Path) -> None:
        pass


class OtherHandler(Handler):
    pass


PLUGIN = """
from tests.type_handlers.test_registry import Handler

class Brush:
    pass

class BrushHandler(Handler):
    types = (Brush, int)

    def __init__(self):
        super().__init__("brush")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install packages with one type handler each, as pip would leave them."""

    def install_package(name: str, source: str, attribute: str = "BrushHandler") -> None:
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[orbit_ckpt.type_handlers]\n{name} = {name}:{attribute}\n"
        )
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(tmp_path)

    return install_package


@pytest.fixture
def default_registry() -> Iterator[TypeHandlerRegistry]:
    """Forget what a test registers in the default registry."""
    with GLOBAL_TYPE_HANDLER_REGISTRY.scope():
        yield GLOBAL_TYPE_HANDLER_REGISTRY


@pytest.mark.parametrize(
    ("value", "typestr"),
    [
        (1, "scalar"),
        (True, "scalar"),
        (1j, "scalar"),
        (np.float32(1), "scalar"),
        ("text", "string"),
        (b"bytes", "np.ndarray"),
        (np.zeros(1), "np.ndarray"),
        (jax.numpy.zeros(1), "jax.Array"),
        (jax.random.key(0), "jax.Array"),
    ],
)
def test_built_in_handlers_have_the_names_of_orbax(value: object, typestr: str) -> None:
    assert get_type_handler(type(value)).typestr() == typestr
    assert get_type_handler(typestr) is get_type_handler(type(value))


def test_built_in_handler_describes_leaves_that_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = Handler("point")
    handlers = [*builtin.built_in_handlers(), (Point, mine)]
    monkeypatch.setattr(builtin, "built_in_handlers", lambda: handlers)
    assert TypeHandlerRegistry().describer("point") is mine


def test_handler_of_the_nearest_class_is_taken() -> None:
    near, far = Handler("near"), OtherHandler("far")
    registry = create_type_handler_registry((Point, far), (NamedPoint, near))
    assert registry.get(NamedPoint) is near
    assert registry.get(type("Sub", (NamedPoint,), {})) is near
    assert registry.get(Point) is far


def test_handler_registered_explicitly_wins_over_a_built_in_one() -> None:
    mine = Handler("mine")
    registry = create_type_handler_registry((int, mine))
    assert registry.get(int) is mine
    assert registry.get(bool) is mine  # its nearest registered class is int
    assert registry.get(float).typestr() == "scalar"


def test_predicate_stands_in_for_subclassing() -> None:
    registry = TypeHandlerRegistry()
    mine = Handler("mine")
    registry.add(Point, mine, func=lambda ty: ty is complex)
    assert registry.get(complex) is mine


def test_registries_are_independent() -> None:
    assert create_type_handler_registry((Point, Handler("point"))).has(Point)
    assert not TypeHandlerRegistry().has(Point)


def test_handler_registered_later_is_found_although_the_lookup_failed_before() -> None:
    registry = TypeHandlerRegistry()
    assert not registry.has(Point)
    registry.add(Point, Handler("point"))
    assert registry.has(Point)
    assert registry.has("point")


@pytest.mark.parametrize("key", [Point, "point"])
def test_failed_lookup_names_what_is_registered(key: type | str) -> None:
    with pytest.raises(ValueError, match=r"lookup failed for: .*[pP]oint.*ndarray.*str.*Register"):
        TypeHandlerRegistry().get(key)


def test_type_is_not_registered_twice_unless_told_to() -> None:
    registry = create_type_handler_registry((Point, Handler("one")))
    with pytest.raises(ValueError, match=r"Point is registered already; pass override=True"):
        registry.add(Point, Handler("two"))
    two = Handler("two")
    registry.add(Point, two, override=True)
    assert registry.get(Point) is two


def test_typestr_of_another_handler_is_refused_unless_told_to() -> None:
    registry = create_type_handler_registry((Point, Handler("one")))
    with pytest.raises(ValueError, match="typestr 'one' belongs to Handler"):
        registry.add(NamedPoint, OtherHandler("one"))
    registry.add(NamedPoint, OtherHandler("one"), override=True)
    assert isinstance(registry.get("one"), OtherHandler)


def test_replaced_handler_is_gone_even_if_it_had_a_predicate() -> None:
    registry = TypeHandlerRegistry()
    one, two = Handler("one"), Handler("two")
    registry.add(Point, one, func=lambda ty: issubclass(ty, Point))
    registry.add(Point, two, func=lambda ty: issubclass(ty, Point), override=True)
    assert registry.get(Point) is two


@pytest.mark.usefixtures("default_registry")
def test_functions_use_the_default_registry() -> None:
    assert not has_type_handler(Point)
    mine = Handler("point")
    register_type_handler(Point, mine)
    assert get_type_handler(Point) is mine
    assert Point in supported_types()
    assert GLOBAL_TYPE_HANDLER_REGISTRY.get("point") is mine


def test_plugin_handles_types_that_nothing_else_does(install: Callable[..., None]) -> None:
    install("plugin_of_brushes", PLUGIN)
    registry = TypeHandlerRegistry()
    assert registry.has("brush")
    brush = sys.modules["plugin_of_brushes"].Brush
    assert registry.get(brush).typestr() == "brush"


def test_plugin_never_changes_how_a_built_in_type_is_written(install: Callable[..., None]) -> None:
    install("plugin_of_brushes", PLUGIN)
    registry = TypeHandlerRegistry()
    assert registry.has("brush")
    assert registry.get(int).typestr() == "scalar"
    assert registry.get("scalar").typestr() == "scalar"


def test_handler_registered_explicitly_wins_over_a_plugin(install: Callable[..., None]) -> None:
    install("plugin_of_brushes", PLUGIN)
    registry = TypeHandlerRegistry()
    assert registry.has("brush")
    mine = Handler("mine")
    registry.add(sys.modules["plugin_of_brushes"].Brush, mine)
    assert registry.get(sys.modules["plugin_of_brushes"].Brush) is mine


def test_plugin_is_not_imported_as_long_as_built_in_types_are_used(
    install: Callable[..., None],
) -> None:
    install("plugin_of_brushes", PLUGIN)
    assert TypeHandlerRegistry().has(float)
    assert "plugin_of_brushes" not in sys.modules


def test_of_two_plugins_for_a_type_the_preferred_one_handles_it(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("plugin_of_brushes", PLUGIN)
    install(
        "second_plugin",
        PLUGIN.replace("class Brush:", "from plugin_of_brushes import Brush\n\nclass Unused:"),
    )
    registry = TypeHandlerRegistry()
    assert registry.has(float)
    with pytest.raises(PluginConflictError, match=r"claim the typestr 'brush': .*second_plugin"):
        registry.get("brush")
    brush = sys.modules["plugin_of_brushes"].Brush
    with pytest.raises(PluginConflictError, match=r"claim the type plugin_of_brushes\.Brush: "):
        registry.get(brush)
    monkeypatch.setenv("ORBIT_CKPT_PREFER_PLUGINS", "second-plugin")
    assert type(registry.get(brush)).__module__ == "second_plugin"
    registry.add(brush, Handler("mine"))
    assert registry.get(brush).typestr() == "mine"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import package_that_is_missing", "package_that_is_missing"),
        ("1 +", "invalid syntax"),
        ("", "BrushHandler"),
        ("class BrushHandler:\n def __init__(self): 1 / 0", "zero"),
        ("class BrushHandler: types = (int,)", "methods of a TypeHandler"),
        (PLUGIN.replace("(Brush, int)", "()"), "which classes it handles"),
        (PLUGIN.replace("(Brush, int)", "('Brush',)"), "which classes it handles"),
    ],
    ids=[
        "import error",
        "syntax error",
        "no such name",
        "constructor fails",
        "no handler",
        "no types",
        "types that are no classes",
    ],
)
def test_broken_plugin_is_a_warning_that_names_it_and_the_others_work(
    install: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    source: str,
    message: str,
) -> None:
    install("a_broken_plugin", source)
    install("plugin_of_brushes", PLUGIN)
    with caplog.at_level(logging.WARNING):
        assert TypeHandlerRegistry().has("brush")
    (text,) = [record.getMessage() for record in caplog.records]
    assert "a_broken_plugin" in text
    assert message in text


class _PointFiles:
    """What both handlers of points do: one JSON file per point."""

    def typestr(self) -> str:
        return "tests.Point"

    async def metadata(self, infos: Sequence[Any]) -> Sequence[Any]:
        return [SimpleNamespace(name=info.name, directory=info.parent_dir) for info in infos]

    async def deserialize(
        self,
        infos: Sequence[Any],
        args: object = None,  # noqa: ARG002 - the interface has it
    ) -> Sequence[Point]:
        return [Point(**json.loads((info.path / "point.json").read_text())) for info in infos]


def write_point(value: Point, path: Path) -> None:
    path.mkdir(parents=True)
    (path / "point.json").write_text(json.dumps({"x": value.x, "y": value.y}))


def orbax_handler() -> Any:
    """Return a handler as one writes it for Orbax, with nothing of orbit_ckpt in it."""
    type_handlers = pytest.importorskip(
        "orbax.checkpoint.type_handlers", reason="Orbax is only in the test group"
    )
    future = pytest.importorskip("orbax.checkpoint.future", reason="goes with type_handlers")

    class PointHandler(_PointFiles, type_handlers.TypeHandler):
        async def serialize(
            self,
            values: Sequence[Point],
            infos: Sequence[Any],
            args: object = None,  # noqa: ARG002 - the interface has it
        ) -> Sequence[Any]:
            async def write(value: Point, info: Any) -> None:
                await info.await_path_creation()
                async with info.byte_limiter.reserve(1):
                    write_point(value, info.path)

            return [
                future.CommitFutureAwaitingContractedSignals(write(value, info), name="point")
                for value, info in zip(values, infos, strict=True)
            ]

        def finalize(self, directory: Path) -> None:
            (directory / "points_are_complete").touch()

    return PointHandler()


@pytest.mark.parametrize("options", LAYOUTS)
def test_handler_written_for_orbax_saves_and_loads_unchanged(
    options: dict[str, bool], tmp_path: Path
) -> None:
    registry = create_type_handler_registry((Point, orbax_handler()))
    tree = {"a": Point(1, 2), "b": [NamedPoint(3, 4)], "w": np.arange(3)}
    points = checkpointer(type_handler_registry=registry, **options)
    points.save(tmp_path / "c", tree)
    loaded = points.restore(tmp_path / "c")
    assert loaded["a"] == Point(1, 2)
    assert loaded["b"] == [Point(3, 4)]
    assert (tmp_path / "c" / "points_are_complete").exists()
    item: Any = points.metadata(tmp_path / "c").item_metadata
    assert item.tree["a"].name == "a"


@pytest.mark.usefixtures("default_registry")
def test_functions_use_handlers_of_the_default_registry(tmp_path: Path) -> None:
    register_type_handler(Point, orbax_handler())
    ocp.save(tmp_path / "c", {"a": Point(1, 2)})
    assert ocp.load(tmp_path / "c") == {"a": Point(1, 2)}
    assert ocp.load(tmp_path / "c", like={"a": Point(0, 0)}) == {"a": Point(1, 2)}


class _SharedFile(_PointFiles):
    """Also keeps a file for all of its leaves."""

    async def serialize(
        self,
        values: Sequence[Any],
        infos: Sequence[Any],
        args: object = None,  # noqa: ARG002 - the interface has it
    ) -> Sequence[Any]:
        for value, info in zip(values, infos, strict=True):
            write_point(value, info.path)
        (infos[0].parent_dir / "shared").mkdir()
        (infos[0].parent_dir / "shared" / "scale.txt").write_text("1")
        return []

    def finalize(self, directory: Path) -> None:
        pass


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize("file", ["a/point.json", "shared/scale.txt"])
def test_a_file_that_a_handler_reads_itself_is_compared_with_the_manifest_first(
    file: str, options: dict[str, bool], tmp_path: Path
) -> None:
    registry = create_type_handler_registry((Point, _SharedFile()))
    tree = {"a": Point(1, 2), "b": Point(3, 4), "w": np.arange(3)}
    points = checkpointer(type_handler_registry=registry, **options)
    points.save(tmp_path / "c", tree)
    damaged = tmp_path / "c" / file
    damaged.write_text(damaged.read_text().replace("1", "7"))
    with pytest.raises(CorruptionError, match=f"{file} is damaged: its checksum"):
        points.restore(tmp_path / "c")
    wanted = ocp.args.PyTreeRestore({"w": np.arange(3)}, partial_restore=True)
    assert points.restore(tmp_path / "c", wanted)["w"].tolist() == [0, 1, 2]


def test_leaf_of_a_handler_that_is_not_registered_is_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    class PointHandler(_PointFiles):
        async def serialize(
            self,
            values: Sequence[Any],
            infos: Sequence[Any],
            args: object = None,  # noqa: ARG002 - the interface has it
        ) -> Sequence[Any]:
            for value, info in zip(values, infos, strict=True):
                write_point(value, info.path)
            return []

        def finalize(self, directory: Path) -> None:
            pass

    registry = create_type_handler_registry((Point, PointHandler()))
    checkpointer(type_handler_registry=registry).save(tmp_path / "c", {"a": {"b": Point(1, 2)}})
    with pytest.raises(ValueError, match=r"a/b: no type handler is registered for 'tests.Point'"):
        ocp.load(tmp_path / "c")
