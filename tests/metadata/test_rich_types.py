"""`value_metadata_tree`: the containers that `_METADATA` loses, in Orbax's encoding."""

from __future__ import annotations

import collections
import json
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.metadata.rich_types import decode_rich_types, find_namedtuple
from orbit_ckpt.errors import FormatError
from tests.programs import run_script
from tests.support import assert_same_tree, checkpointer

Pair = collections.namedtuple("Pair", "mu nu")


class Outer(NamedTuple):
    inner: Any
    other: Any = 0

    class Nested(NamedTuple):
        x: Any


class Empty(NamedTuple):
    pass


TREES = {
    "dict": {"a": 1, "b": {"c": 2.5}},
    "sequences": [1, (2, [3, (4,)]), ()],
    "namedtuples": Pair(1, Outer({"a": Pair(2, 3)}, (4,))),
    "nested class": {"a": Outer.Nested(1)},
    "empties": {"a": {}, "b": [], "c": (), "d": None, "e": Empty()},
    "key names": {"a/b": 1, "c~d": (2,), "": 3, "category": 4, "dot.ted": 5},
    "leaf": 1,
}


def rich_types_of(path: Path) -> Any:
    document = json.loads((path / "_METADATA").read_text())
    return json.loads(document["value_metadata_tree"])


def decode(document: object, **leaves: object) -> object:
    def leaf(names: tuple[str, ...]) -> object:
        return leaves[".".join(names)]

    return decode_rich_types(json.dumps(document), "file", leaf, {})


def leaf(kind: str = "scalar") -> dict[str, object]:
    data = {"value_type": kind, "skip_deserialize": False}
    return {"category": "custom", "clazz": "ValueMetadataEntry", "data": data}


def namedtuple(module: str, clazz: str, **entries: object) -> dict[str, object]:
    rows = [{"key": key, "value": value} for key, value in entries.items()]
    return {"category": "namedtuple", "module": module, "clazz": clazz, "entries": rows}


@pytest.mark.parametrize("name", TREES)
def test_containers_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", TREES[name])
    assert_same_tree(ocp.load(tmp_path / "x"), TREES[name])


@pytest.mark.interop
@pytest.mark.parametrize("name", [name for name in TREES if name != "key names"])
def test_the_encoding_is_orbax_s(name: str, tmp_path: Path) -> None:
    import orbax.checkpoint as orbax  # noqa: PLC0415 - optional
    from orbax.checkpoint._src.metadata import pytree_metadata_options as theirs  # noqa: PLC0415 - optional

    options = theirs.PyTreeMetadataOptions(support_rich_types=True)
    handler = orbax.PyTreeCheckpointHandler(pytree_metadata_options=options)
    orbax.Checkpointer(handler).save(tmp_path / "orbax", TREES[name])
    checkpointer().save(tmp_path / "ours", TREES[name])
    assert rich_types_of(tmp_path / "ours") == rich_types_of(tmp_path / "orbax")


def test_without_rich_types_nothing_is_recorded(tmp_path: Path) -> None:
    checkpointer(rich_types=False).save(tmp_path / "x", TREES["namedtuples"])
    assert "value_metadata_tree" not in json.loads((tmp_path / "x" / "_METADATA").read_text())


def test_a_namedtuple_whose_class_is_not_here_comes_back_generic() -> None:
    document = namedtuple("gone", "Outer.Gone", b=leaf(), a=leaf())
    found = decode(document, a=1, b=2)
    assert found == (2, 1)
    assert found._fields == ("b", "a")  # pyright: ignore[reportAttributeAccessIssue] - generic
    again = decode(document, a=3, b=4)
    assert type(again) is type(found), (
        "equal descriptions must give one class, or JAX tells them apart"
    )


def test_a_namedtuple_whose_fields_changed_comes_back_generic() -> None:
    found = decode(namedtuple(__name__, "Pair", mu=leaf(), rho=leaf()), mu=1, rho=2)
    assert type(found) is not Pair
    assert found._fields == ("mu", "rho")  # pyright: ignore[reportAttributeAccessIssue] - generic


def test_only_namedtuples_that_have_been_imported_are_looked_up() -> None:
    assert find_namedtuple(f"{__name__}:Outer.Nested", ("x",)) is Outer.Nested
    assert find_namedtuple(f"{__name__}:Pair", ("nu", "mu")) is None
    assert find_namedtuple("subprocess:Popen", ("args",)) is None
    assert find_namedtuple("builtins:tuple", ()) is None
    assert find_namedtuple("no such:thing", ()) is None
    assert find_namedtuple("", ()) is None


def test_looking_up_a_class_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    assert find_namedtuple("lazy:Missing", ("a",)) is None


def test_loading_imports_no_module_that_a_checkpoint_names(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(
        "import collections\nBad = collections.namedtuple('Bad', 'a')"
    )
    ocp.save(tmp_path / "x", {"t": Pair(1, 2)})
    document = json.loads((tmp_path / "x" / "_METADATA").read_text())
    rich = document["value_metadata_tree"]
    document["value_metadata_tree"] = rich.replace(json.dumps(__name__), '"evil"')
    assert "evil" in document["value_metadata_tree"]
    (tmp_path / "x" / "_METADATA").write_text(json.dumps(document))
    (tmp_path / "x" / "orbit_manifest.json").unlink()
    sys.path.insert(0, str(tmp_path))
    try:
        assert ocp.load(tmp_path / "x")["t"] == (1, 2)
        assert "evil" not in sys.modules
    finally:
        sys.path.remove(str(tmp_path))


def test_field_names_that_python_refuses_are_renamed() -> None:
    found = decode({"t": namedtuple("m-o d", "1 x", **{"class": leaf(), "_a": leaf(), "": leaf()})},
                   **{"t.class": 1, "t._a": 2, "t.": 3})  # fmt: skip
    assert found == {"t": (1, 2, 3)}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (1, "expected an object or a list, found 1"),
        ({"a": None}, "expected an object or a list, found None"),
        ({"category": "pickle"}, "unknown category 'pickle'"),
        ({"category": "custom"}, "KeyError: 'clazz'"),
        ({"category": "namedtuple", "clazz": "A", "module": "m"}, "KeyError: 'entries'"),
        (namedtuple("m", "A", a=leaf("x")) | {"entries": [1]}, "TypeError"),
        (leaf(), "KeyError"),
    ],
)
def test_what_orbax_does_not_write_is_refused(document: object, message: str) -> None:
    with pytest.raises(FormatError, match=f"file: value_metadata_tree: .*{message}"):
        decode(document)
    with pytest.raises(FormatError, match="file: value_metadata_tree"):
        decode_rich_types("not JSON", "file", lambda _: 0, {})


@pytest.mark.slow
def test_a_namedtuple_of_a_script_loads_in_another_process(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"t": Pair(np.ones(2), (1, "x"))})
    script = f"""
import orbit_ckpt
t = orbit_ckpt.load({str(tmp_path / "x")!r})["t"]
print(type(t).__name__, t._fields, t.mu.tolist(), t.nu)
"""
    printed = run_script(script).stdout
    assert "Pair" in printed
    assert "('mu', 'nu') [1.0, 1.0] (1, 'x')" in printed
