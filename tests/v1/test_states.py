"""States in the v1 API: each case gives what it gives with Orbax."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import orbit_ckpt
import orbit_ckpt.v1 as ours
from orbit_ckpt.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    TreeMismatchError,
)
from tests.v1.both import LEAKS, LIBRARIES, plain, raises, run_both

pytestmark = [pytest.mark.interop, LEAKS]


def sharded() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), PartitionSpec("x"))


def state() -> dict[str, Any]:
    return {
        "w": jax.device_put(jnp.arange(8.0), sharded()),
        "n": np.arange(3, dtype=np.int32),
        "i": 3,
        "f": 2.5,
        "s": "hi",
        "l": [1, 2, (jnp.ones(2),)],
        "e": {},
        "none": None,
    }


def with_leaf(name: str, leaf: object) -> dict[str, Any]:
    return {**state(), name: leaf}


ABSTRACT: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "the state": state,
    "shapes": lambda: with_leaf("w", jax.ShapeDtypeStruct((8,), jnp.float32)),
    "another dtype": lambda: with_leaf("w", jax.ShapeDtypeStruct((8,), jnp.bfloat16)),
    "a whole number": lambda: with_leaf("w", jax.ShapeDtypeStruct((8,), jnp.int32)),
    "another sharding": lambda: with_leaf(
        "w",
        jax.ShapeDtypeStruct((8,), jnp.float32, sharding=SingleDeviceSharding(jax.devices()[1])),
    ),
    "numpy for jax": lambda: with_leaf("w", np.empty(8, np.float16)),
    "types of scalars": lambda: with_leaf("i", int) | {"f": float, "s": str},
    "other types of scalars": lambda: with_leaf("i", float) | {"f": int},
    "the type of numpy": lambda: with_leaf("w", np.ndarray),
    "the type of jax": lambda: with_leaf("w", jax.Array),
    "another shape": lambda: with_leaf("w", jax.ShapeDtypeStruct((4,), jnp.float32)),
    "another shape of numpy": lambda: with_leaf("n", np.empty(5, np.int32)),
    "a leaf too many": lambda: with_leaf("z", 1),
    "a leaf too few": lambda: {"w": state()["w"]},
    "a placeholder": lambda: with_leaf("w", ...),
    "no leaf": lambda: with_leaf("w", object()),
}


@pytest.mark.parametrize("case", ABSTRACT)
def test_abstract_state(case: str, tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        lib.save(at / "c", state())
        abstract = ABSTRACT[case]()
        return lib.load(at / "c", abstract)

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_metadata_is_an_abstract_state(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        lib.save(at / "c", state())
        found = lib.metadata(at / "c")
        return lib.load(at / "c", found), lib.load(at / "c", found.metadata)

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_metadata_describes_the_state(tmp_path: Path) -> None:
    def described(leaf: Any) -> object:
        if hasattr(leaf, "shape"):
            return (
                type(leaf).__name__,
                leaf.shape,
                str(leaf.dtype),
                str(getattr(leaf, "sharding", None)),
            )
        return leaf

    def steps(lib: Any, at: Path) -> object:
        lib.save(at / "c", state(), custom_metadata={"a": [1, {"b": None}]})
        found = lib.metadata(at / "c")
        assert found.init_timestamp_nsecs <= found.commit_timestamp_nsecs
        assert found.init_timestamp <= found.commit_timestamp
        tree = jax.tree.map(described, found.metadata, is_leaf=lambda x: hasattr(x, "shape"))
        return str((found.path == at / "c", found.custom_metadata, tree))

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


PARTIAL = {
    "fewer leaves": lambda: {"w": state()["w"]},
    "a leaf that is missing": lambda: {"w": state()["w"], "z": 3},
    "a missing leaf without a value": lambda: {
        "w": state()["w"],
        "z": jax.ShapeDtypeStruct((4,), jnp.float32),
    },
}


@pytest.mark.parametrize("case", PARTIAL)
def test_partial_load(case: str, tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        lib.save(at / "c", state())
        context = lib.Context()
        context.pytree.loading.partial_load = True
        with context:
            return lib.load(at / "c", PARTIAL[case]())

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


@pytest.mark.parametrize("size", [4, 10])
def test_padding_and_truncation(size: int, tmp_path: Path) -> None:
    placed = SingleDeviceSharding(jax.devices()[1])

    def steps(lib: Any, at: Path) -> object:
        lib.save(at / "c", state())
        context = lib.Context()
        context.array.loading.enable_padding_and_truncation = True
        wanted = jax.ShapeDtypeStruct((size,), jnp.float32, sharding=placed)
        with context:
            return lib.load(at / "c", with_leaf("w", wanted))

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


NAMES: dict[str, Callable[[Any, Path], object]] = {
    "default": lambda lib, c: lib.load(c),
    "wrong": lambda lib, c: lib.load(c, checkpointable_name="state"),
    "right": lambda lib, c: lib.load(c, checkpointable_name="params"),
    "none": lambda lib, c: lib.load(c, checkpointable_name=None),
    "empty": lambda lib, c: lib.load(c, checkpointable_name=""),
    "reserved": lambda lib, c: lib.load(c, checkpointable_name="metrics"),
    "metadata of a wrong one": lambda lib, c: lib.metadata(c, "state").metadata,
    "save as a reserved one": lambda lib, c: lib.save(c / "x", 1, checkpointable_name="AUTO"),
    "save as an empty one": lambda lib, c: lib.save(c / "x", 1, checkpointable_name=""),
    "the directory of one": lambda lib, c: lib.load(c / "params"),
    "no checkpoint": lambda lib, c: lib.load(c.with_name("none")),
    "metadata of no checkpoint": lambda lib, c: lib.metadata(c.with_name("none")),
    "a run": lambda lib, c: lib.load(c.parent),
    "checkpointables of none": lambda lib, c: lib.load_checkpointables(c.with_name("none")),
    "save again": lambda lib, c: lib.save(c, {"a": 2}),
    "none as a state": lambda lib, c: lib.save(c.with_name("d"), None),
    "an object as a leaf": lambda lib, c: lib.save(c.with_name("d"), {"a": object()}),
    "a placeholder as a leaf": lambda lib, c: lib.save(c.with_name("d"), {"a": ...}),
    "what is a checkpoint": lambda lib, c: [
        lib.is_orbax_checkpoint(path) for path in (c, c.parent, c / "params", c / "none")
    ],
}


@pytest.mark.parametrize("case", NAMES)
def test_names_and_errors(case: str, tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        lib.save(at / "c", {"a": 1}, checkpointable_name="params")
        return NAMES[case](lib, at / "c")

    mine, theirs = run_both(steps, tmp_path)
    if str(theirs).startswith("raises"):
        name = str(theirs).removeprefix("raises ")

        def again() -> object:
            return NAMES[case](ours, tmp_path / "ours" / "c")

        assert str(mine).startswith("raises")
        assert raises(again, name)
    else:
        assert mine == theirs


def test_state_comes_first_among_several_trees(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        lib.save_checkpointables(at / "c", {"a": {"x": 1}, "state": {"x": 2}, "z": {"x": 3}})
        lib.save_checkpointables(at / "d", {"b": {"x": 1}, "z": {"x": 3}})
        return lib.load(at / "c"), lib.load(at / "d")

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs == ({"x": ("int", 2)}, {"x": ("int", 1)})


def test_overwriting_replaces_everything(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        lib.save(at / "c", {"a": 1}, custom_metadata={"k": 1})
        lib.save(at / "c", {"b": 2}, overwrite=True, checkpointable_name="other")
        found = lib.metadata(at / "c")
        return lib.load(at / "c"), found.custom_metadata, sorted(p.name for p in at.iterdir())

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


@pytest.mark.parametrize(("writer", "reader"), [("ours", "orbax"), ("orbax", "ours")])
def test_states_pass_between_the_libraries(writer: str, reader: str, tmp_path: Path) -> None:
    LIBRARIES[writer].save(tmp_path / "c", state(), custom_metadata={"k": 1})
    found = LIBRARIES[reader].load(tmp_path / "c")
    abstract = LIBRARIES[reader].load(tmp_path / "c", state())
    as_written = LIBRARIES[writer].load(tmp_path / "c")
    assert plain(found) == plain(as_written)
    assert plain(abstract) == plain(LIBRARIES[writer].load(tmp_path / "c", state()))
    assert LIBRARIES[reader].metadata(tmp_path / "c").custom_metadata == {"k": 1}


def test_other_faces_load_what_v1_saved(tmp_path: Path) -> None:
    ours.save(tmp_path / "c", state())
    assert orbit_ckpt.load(tmp_path / "c")["i"] == 3
    assert orbit_ckpt.verify(tmp_path / "c").is_intact
    manager = orbit_ckpt.CheckpointManager(tmp_path / "run", item_names=["state"])
    ours.save(tmp_path / "run" / "7", state())
    manager.reload()
    assert manager.restore(7)["state"]["i"] == 3
    manager.close()


def test_v1_loads_what_other_faces_saved(tmp_path: Path) -> None:
    orbit_ckpt.save(tmp_path / "flat", {"a": 1})
    assert ours.load(tmp_path / "flat") == {"a": 1}
    assert ours.load(tmp_path / "flat", checkpointable_name=None) == {"a": 1}
    assert LIBRARIES["orbax"].load(tmp_path / "flat") == {"a": 1}
    with pytest.raises(ours.errors.InvalidLayoutError, match="one tree without named"):
        ours.load_checkpointables(tmp_path / "flat")
    manager = orbit_ckpt.CheckpointManager(tmp_path / "run")
    manager.save(0, {"a": 2})
    manager.close()
    assert ours.load(tmp_path / "run" / "0") == {"a": 2}


def test_custom_metadata_is_an_object(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a JSON object"):
        LIBRARIES["ours"].save(tmp_path / "c", {"a": 1}, custom_metadata=[1])
    assert list(tmp_path.iterdir()) == []


def test_missing_checkpoint_is_named_and_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ours.errors.InvalidLayoutError, match="nothing is there") as caught:
        ours.load(tmp_path / "none")
    assert isinstance(caught.value, CheckpointNotFoundError)
    assert isinstance(caught.value, CheckpointError)


def test_unfinished_save_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "c.orbax-checkpoint-tmp").mkdir()
    with pytest.raises(ours.errors.InvalidLayoutError):
        ours.load(tmp_path / "c.orbax-checkpoint-tmp")


def test_damage_is_found(tmp_path: Path) -> None:
    ours.save(tmp_path / "c", {"w": np.arange(1000.0)})
    data = next((tmp_path / "c" / "state" / "d").iterdir())
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 0xFF
    data.write_bytes(content)
    with pytest.raises(CorruptionError):
        ours.load(tmp_path / "c")


def test_save_in_the_background_reports_its_end(tmp_path: Path) -> None:
    ended: list[object] = []
    response = ours.save_async(tmp_path / "c", {"w": jnp.arange(3)})
    response.result()
    response.on_complete(ended.append)
    assert ended == [None]
    assert ours.load(tmp_path / "c")["w"].tolist() == [0, 1, 2]
    assert ours.load_async(tmp_path / "c").result()["w"].tolist() == [0, 1, 2]
    assert ours.load_checkpointables_async(tmp_path / "c").result().keys() == {"state"}


def test_failed_save_leaves_nothing_and_calls_nobody(tmp_path: Path) -> None:
    ended: list[object] = []
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ours.save_async(tmp_path / "file" / "c", {"w": 1}).on_complete(ended.append)
    assert ended == []


def test_more_leaves_are_saved_than_by_orbax(tmp_path: Path) -> None:
    tree = {"a": np.float32(1.5), "b": b"x", "c": 1j, "d": True, "e": jax.random.key(1)}
    ours.save(tmp_path / "c", tree)
    found = ours.load(tmp_path / "c")
    assert found["a"] == np.float32(1.5)
    assert (found["b"], found["c"], found["d"]) == (b"x", 1j, True)
    assert ours.load(tmp_path / "c", tree)["e"].dtype == tree["e"].dtype
    described = ours.metadata(tmp_path / "c").metadata
    assert described["d"] is False
    assert described["c"] == 0j
    again = ours.load(tmp_path / "c", described)
    assert again["d"] is True


def test_deprecated_names_warn(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="save"):
        ours.save_pytree(tmp_path / "c", {"a": 1})
    with pytest.warns(DeprecationWarning, match="save_async"):
        ours.save_pytree_async(tmp_path / "d", {"a": 1}).result()
    with pytest.warns(DeprecationWarning, match="load"):
        assert ours.load_pytree(tmp_path / "c") == {"a": 1}
    with pytest.warns(DeprecationWarning, match="metadata"):
        assert ours.pytree_metadata(tmp_path / "c").metadata == {"a": 0}


ADVICE = {
    "a leaf that is missing": ({"w": np.ones(2), "z": 1}, r"lacks .*partial_load = True"),
    "a leaf too few": ({}, r"leave out .*partial_load = True"),
    "another shape": (
        {"w": jax.ShapeDtypeStruct((3,), jnp.float32)},
        "enable_padding_and_truncation",
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_error_advises_what_the_api_has(case: str, tmp_path: Path) -> None:
    abstract, advice = ADVICE[case]
    ours.save(tmp_path / "c", {"w": jnp.ones(2)})
    with pytest.raises(TreeMismatchError, match=advice) as raised:
        ours.load(tmp_path / "c", abstract)
    for option in ("fallback", "cast=", "partial_restore", "unexpected="):
        assert option not in str(raised.value)
