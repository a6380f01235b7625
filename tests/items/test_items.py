"""Items other than trees, alone and together; Orbax reads them and we read Orbax's."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays.dtypes import is_prng_dtype
from orbit_ckpt._src.checkpointer.options import SessionOptions
from orbit_ckpt._src.checkpointer.save import SaveRequest, begin_save, handled_item
from orbit_ckpt.args import CheckpointArgs, register_with_handler
from orbit_ckpt.errors import CheckpointNotFoundError, CorruptionError, FormatError
from tests.support import assert_same_tree

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
CONFIG = {"lr": 0.1, "layers": [1, 2, {"name": "ä"}], "none": None}


def state() -> dict[str, Any]:
    return {"w": jnp.asarray(VALUES), "step": 3}


def numpy_state(*, legacy: bool) -> Any:
    return np.random.RandomState(3).get_state(legacy=legacy)


def same_key(found: jax.Array, expected: jax.Array) -> bool:
    if is_prng_dtype(expected.dtype):
        assert jax.random.key_impl(found) == jax.random.key_impl(expected)
        found, expected = jax.random.key_data(found), jax.random.key_data(expected)
    return found.dtype == expected.dtype and np.array_equal(found, expected)


def every_item(args: Any) -> dict[str, Any]:
    """Arguments to save one item of every kind, of our classes or Orbax's."""
    return {
        "state": args.StandardSave({"w": jnp.asarray(VALUES)}),
        "params": args.PyTreeSave(state()),
        "config": args.JsonSave(CONFIG),
        "array": args.ArraySave(jnp.asarray(VALUES)),
        "scalar": args.ArraySave(2.5),
        "key": args.JaxRandomKeySave(jax.random.key(1)),
        "raw_key": args.JaxRandomKeySave(jax.random.PRNGKey(2)),
        "numpy_key": args.NumpyRandomKeySave(numpy_state(legacy=True)),
        "numpy_dict": args.NumpyRandomKeySave(numpy_state(legacy=False)),
    }


def assert_every_item(found: Any) -> None:
    assert_same_tree(dict(found["state"]), {"w": jnp.asarray(VALUES)})
    assert_same_tree(found["params"], state())
    assert found["config"] == CONFIG
    assert np.array_equal(found["array"], VALUES)
    assert found["scalar"] == 2.5
    assert same_key(found["key"], jax.random.key(1))
    assert same_key(found["raw_key"], jax.random.PRNGKey(2))
    for name, legacy in (("numpy_key", True), ("numpy_dict", False)):
        generator = np.random.RandomState(0)
        generator.set_state(found[name])
        assert generator.randint(10**9) == np.random.RandomState(3).randint(10**9), name
        assert isinstance(found[name], tuple) == legacy


def test_items_of_every_kind_round_trip_and_need_no_arguments(tmp_path: Path) -> None:
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "x", ocp.args.Composite(**every_item(ocp.args)))
    found = ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore(tmp_path / "x")
    assert_every_item(found)
    assert found.config is found["config"]


def test_a_program_that_names_no_item_restores_every_kind(tmp_path: Path) -> None:
    """Handlers that are imported when they are needed are found by what is recorded."""
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "x", ocp.args.Composite(**every_item(ocp.args)))
    script = (
        "import sys, orbit_ckpt as o;"
        "print(sorted(o.Checkpointer(o.CompositeCheckpointHandler()).restore(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "x")]
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert shown.strip() == str(sorted(every_item(ocp.args)))


def test_items_are_saved_in_the_background_too(tmp_path: Path) -> None:
    with ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        config = dict(CONFIG)
        items = every_item(ocp.args) | {"config": ocp.args.JsonSave(config)}
        checkpointer.save(tmp_path / "x", ocp.args.Composite(**items))
        config["lr"] = 7
    assert_every_item(ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore(tmp_path / "x"))


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
def test_orbax_restores_every_item(tmp_path: Path) -> None:
    import orbax.checkpoint as orbax  # noqa: PLC0415 - optional

    items = every_item(ocp.args)
    ocp.Checkpointer(ocp.CompositeCheckpointHandler()).save(
        tmp_path / "x", ocp.args.Composite(**items)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = orbax.Checkpointer(orbax.CompositeCheckpointHandler()).restore(tmp_path / "x")
    assert_every_item(found)


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
def test_every_item_of_orbax_is_restored(tmp_path: Path) -> None:
    import orbax.checkpoint as orbax  # noqa: PLC0415 - optional

    with orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "x", orbax.args.Composite(**every_item(orbax.args)))
    found = ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore(tmp_path / "x")
    assert_every_item(found)


@pytest.mark.parametrize(
    "make",
    [
        lambda: jax.random.key(0, impl="rbg"),
        lambda: jax.random.key(0, impl="unsafe_rbg"),
        lambda: jax.random.split(jax.random.key(5), 3),
        lambda: jax.random.PRNGKey(9),
    ],
    ids=["rbg", "unsafe_rbg", "several", "raw"],
)
def test_keys_of_every_implementation_come_back(
    make: Callable[[], jax.Array], tmp_path: Path
) -> None:
    checkpointer = ocp.Checkpointer(ocp.JaxRandomKeyCheckpointHandler())
    checkpointer.save(tmp_path / "x", ocp.args.JaxRandomKeySave(make()))
    assert same_key(checkpointer.restore(tmp_path / "x"), make())


def test_an_array_is_restored_as_asked_for(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.ArrayCheckpointHandler())
    save_args = ocp.SaveArgs(dtype=np.float16)
    checkpointer.save(tmp_path / "x", ocp.args.ArraySave(jnp.asarray(VALUES), save_args))
    wanted = ocp.RestoreArgs(restore_type=np.ndarray, dtype=np.float64)
    found = checkpointer.restore(tmp_path / "x", ocp.args.ArrayRestore(restore_args=wanted))
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float64
    assert np.array_equal(found, VALUES)
    described: Any = checkpointer.metadata(tmp_path / "x").item_metadata
    assert described.shape == (3, 4)


def test_items_wanted_are_restored_and_others_left_alone(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    items = {"a": ocp.args.JsonSave(1), "b": ocp.args.JsonSave(2), "c": None}
    checkpointer.save(tmp_path / "x", ocp.args.Composite(**items))
    found = checkpointer.restore(tmp_path / "x", ocp.args.Composite(b=ocp.args.JsonRestore()))
    assert dict(found) == {"b": 2}
    assert dict(checkpointer.restore(tmp_path / "x", ocp.args.Composite(a=None))) == {"a": 1}
    with pytest.raises(CheckpointNotFoundError, match=r"No item 'c' at .*a, b"):
        checkpointer.restore(tmp_path / "x", ocp.args.Composite(c=ocp.args.JsonRestore()))


def test_an_item_that_cannot_be_read_leaves_the_metadata_of_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    items = {name: ocp.args.StandardSave(state()) for name in ("ok", "gone", "torn", "odd")}
    composite = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    composite.save(tmp_path / "x", ocp.args.Composite(**items), custom_metadata={"tag": 1})
    (tmp_path / "x" / "gone" / "_METADATA").unlink()
    (tmp_path / "x" / "torn" / "_METADATA").write_text("{")
    recorded = json.loads((tmp_path / "x" / "_CHECKPOINT_METADATA").read_text())
    recorded["item_handlers"]["odd"] = "some.package.Handler"
    (tmp_path / "x" / "odd" / "_METADATA").rename(tmp_path / "x" / "odd" / "_OTHER")
    (tmp_path / "x" / "_CHECKPOINT_METADATA").write_text(json.dumps(recorded))
    (tmp_path / "x" / "orbit_manifest.json").unlink()
    found = composite.metadata(tmp_path / "x")
    described: Any = found.item_metadata
    assert described.ok["w"].shape == (3, 4)
    assert [described[name] for name in ("gone", "torn", "odd")] == [None] * 3
    assert found.custom_metadata == {"tag": 1}
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([line for line in warned if "orbit_manifest.json is missing" not in line]) == 3
    assert all(any(repr(name) in line for line in warned) for name in ("gone", "torn", "odd"))


def test_metadata_of_a_composite_handler_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    handler = ocp.CompositeCheckpointHandler()
    args = ocp.args.Composite(state=ocp.args.StandardSave(state()))
    ocp.Checkpointer(handler).save(tmp_path / "x", args, custom_metadata={"tag": 1})
    found = handler.metadata(tmp_path / "x")
    assert found == ocp.Checkpointer(handler).metadata(tmp_path / "x")
    recorded = orbax.Checkpointer(orbax.CompositeCheckpointHandler()).metadata(tmp_path / "x")
    assert found.item_handlers == recorded.item_handlers
    assert found.item_metadata is not None
    assert found.custom_metadata == recorded.custom_metadata == {"tag": 1}
    assert found.commit_timestamp_nsecs == recorded.commit_timestamp_nsecs


def test_statistics_of_a_save_are_items_and_attributes(tmp_path: Path) -> None:
    composite = orbax.Checkpointer(orbax.CompositeCheckpointHandler())
    composite.save(tmp_path / "x", orbax.args.Composite(a=orbax.args.StandardSave(state())))
    file = tmp_path / "x" / "_CHECKPOINT_METADATA"
    document = json.loads(file.read_text())
    document["performance_metrics"] = {"checkpointer_blocking_duration_secs": 0.5}
    file.write_text(json.dumps(document))
    found = ocp.Checkpointer(ocp.CompositeCheckpointHandler()).metadata(tmp_path / "x")
    assert found.performance_metrics["checkpointer_blocking_duration_secs"] == 0.5
    assert found.performance_metrics.checkpointer_blocking_duration_secs == 0.5
    assert found.performance_metrics.step is None
    assert copy.deepcopy(found.performance_metrics) == found.performance_metrics


def test_metadata_tell_of_every_item(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    checkpointer.save(
        tmp_path / "x", ocp.args.Composite(s=ocp.args.PyTreeSave(state()), j=ocp.args.JsonSave(1))
    )
    found = ocp.Checkpointer(ocp.CompositeCheckpointHandler()).metadata(tmp_path / "x")
    described: Any = found.item_metadata
    assert described["s"].tree["w"].shape == (3, 4)
    assert described["j"] is None
    assert isinstance(found.item_handlers, dict)
    assert set(found.item_handlers) == {"s", "j"}


def test_an_error_names_the_item_and_nothing_is_left(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    items = {"good": ocp.args.JsonSave(1), "bad": ocp.args.JsonSave({1, 2})}
    with pytest.raises(TypeError, match="bad: a JSON item must be"):
        checkpointer.save(tmp_path / "x", ocp.args.Composite(**items))
    assert not list(tmp_path.iterdir())


def test_damaged_items_are_noticed(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    checkpointer.save(
        tmp_path / "x",
        ocp.args.Composite(
            j=ocp.args.JsonSave(CONFIG), k=ocp.args.JaxRandomKeySave(jax.random.key(0))
        ),
    )
    for file in ("j/metadata", "k/jax_random_key_metadata/metadata"):
        text = (tmp_path / "x" / file).read_text()
        (tmp_path / "x" / file).write_text(text.replace("true", "fals").replace("0.1", "0.2"))
        name = file.split("/")[0]
        with pytest.raises(CorruptionError, match=file):
            checkpointer.restore(tmp_path / "x", ocp.args.Composite(**{name: None}))


@pytest.mark.parametrize("about", ["[]", "{}", '{"typed": "yes"}'])
def test_what_is_not_understood_of_a_key_is_named(about: str, tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.JaxRandomKeyCheckpointHandler())
    checkpointer.save(tmp_path / "x", ocp.args.JaxRandomKeySave(jax.random.key(0)))
    for manifest in (tmp_path / "x").rglob("orbit_manifest.json"):
        manifest.unlink()
    (tmp_path / "x" / "jax_random_key_metadata" / "metadata").write_text(about)
    with pytest.raises(FormatError, match="jax_random_key_metadata: expected an object"):
        checkpointer.restore(tmp_path / "x")


@pytest.mark.parametrize("name", ["__a", "", "a/b", "..", "."])
def test_names_that_cannot_be_directories_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of an item"):
        ocp.args.Composite(**{name: 1})


class LinesHandler:
    """A third party's item."""

    def save(self, directory: Path, args: LinesSave) -> None:
        (directory / "lines").write_text("\n".join(args.lines))

    def restore(self, directory: Path, args: LinesRestore) -> list[str]:
        return (directory / "lines").read_text().split("\n")[: args.count]

    def finalize(self, directory: Path) -> None:
        pass

    def close(self) -> None:
        pass


@register_with_handler(LinesHandler, for_save=True)
@dataclass
class LinesSave(CheckpointArgs):
    """What to save."""

    lines: list[str]


@register_with_handler(LinesHandler, for_restore=True)
@dataclass
class LinesRestore(CheckpointArgs):
    """What to restore."""

    count: int | None = None


def test_items_of_third_parties_are_found_by_their_arguments_and_by_name(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    checkpointer.save(tmp_path / "x", ocp.args.Composite(text=LinesSave(["a", "b"])))
    fresh = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    assert fresh.restore(tmp_path / "x").text == ["a", "b"]
    assert fresh.restore(tmp_path / "x", ocp.args.Composite(text=LinesRestore(1))).text == ["a"]
    step = json.loads((tmp_path / "x" / "_CHECKPOINT_METADATA").read_text())
    assert step["item_handlers"]["text"].endswith("LinesHandler")


def test_an_item_of_an_unknown_handler_says_what_to_do(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    checkpointer.save(tmp_path / "x", ocp.args.Composite(a=ocp.args.JsonSave(1)))
    file = tmp_path / "x" / "_CHECKPOINT_METADATA"
    (tmp_path / "x" / "orbit_manifest.json").unlink()
    file.write_text(file.read_text().replace("orbax.checkpoint._src", "somewhere.else"))
    with pytest.raises(ValueError, match=r"no item handler 'somewhere\.else.*Import the module"):
        ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore(tmp_path / "x")


def test_a_registry_chooses_handlers_by_item_and_arguments(tmp_path: Path) -> None:
    registry = ocp.DefaultCheckpointHandlerRegistry()
    special = ocp.JsonCheckpointHandler(filename="special")
    registry.add("a", ocp.args.JsonSave, special)
    registry.add("a", ocp.args.JsonRestore, special)
    registry.add(None, ocp.args.JsonSave)
    with pytest.raises(ValueError, match="has a handler for JsonSaveArgs already"):
        registry.add("a", ocp.args.JsonSave(1))
    handler = ocp.CompositeCheckpointHandler(handler_registry=registry)
    items = {"a": ocp.args.JsonSave(1), "b": ocp.args.JsonSave(2)}
    ocp.Checkpointer(handler).save(tmp_path / "x", ocp.args.Composite(**items))
    assert (tmp_path / "x" / "a" / "special").exists()
    assert (tmp_path / "x" / "b" / "metadata").exists()
    assert dict(ocp.Checkpointer(handler).restore(tmp_path / "x")) == {"a": 1, "b": 2}
    with pytest.raises(KeyError, match="no handler for item 'c' with ArraySaveArgs"):
        registry.get("c", ocp.args.ArraySave(1))


def test_progress_counts_the_arrays_of_all_items(tmp_path: Path) -> None:
    path = tmp_path / "x"
    items = ocp.args.Composite(**every_item(ocp.args))
    item = handled_item(ocp.CompositeCheckpointHandler(), {"args": items})
    request = SaveRequest(path, item)
    handle = begin_save(request, SessionOptions())
    handle.result()
    assert handle.progress.leaves == handle.progress.total_leaves > 5
    assert handle.progress.nbytes == handle.progress.total_nbytes > 0


def test_arguments_of_another_handler_than_the_given_one_are_refused(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler(a=ocp.JsonCheckpointHandler()))
    with pytest.raises(ValueError, match="'a' has the handler JsonHandler, which takes JsonSave"):
        checkpointer.save(tmp_path / "x", ocp.args.Composite(a=ocp.args.PyTreeSave({"b": 1})))


def test_an_item_of_another_kind_than_before_is_refused(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    checkpointer.save(tmp_path / "1", ocp.args.Composite(a=ocp.args.JsonSave({"b": 1})))
    with pytest.raises(ValueError, match=r"'a' was saved with JsonHandler before; found PyTree"):
        checkpointer.save(tmp_path / "2", ocp.args.Composite(a=ocp.args.PyTreeSave({"b": 2})))
    checkpointer.save(tmp_path / "3", ocp.args.Composite(a=ocp.args.JsonSave({"b": 3})))
    assert checkpointer.restore(tmp_path / "1").a == {"b": 1}
    assert checkpointer.restore(tmp_path / "3").a == {"b": 3}


def test_a_broken_plugin_of_items_is_a_warning_that_names_it_and_the_others_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    info = tmp_path / "quant-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quant\nVersion: 1.0\n")
    points = "broken = no_such_module:Handler\nunfit = json:dumps\n"
    (info / "entry_points.txt").write_text(f"[orbit_ckpt.items]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    items = {name: ocp.args.JsonSave(1) for name in ("a", "b", "c")}
    checkpointer.save(tmp_path / "x", ocp.args.Composite(**items))
    document = tmp_path / "x" / "_CHECKPOINT_METADATA"
    text = json.loads(document.read_text())
    text["item_handlers"] |= {"a": "broken", "b": "unfit"}
    document.write_text(json.dumps(text))
    (tmp_path / "x" / "orbit_manifest.json").unlink()
    found: Any = checkpointer.metadata(tmp_path / "x").item_metadata
    assert set(found) == {"a", "b", "c"}
    for item, name in (("a", "broken"), ("b", "unfit")):
        with pytest.raises(ValueError, match=f"no item handler '{name}' is known here"):
            checkpointer.restore(tmp_path / "x", ocp.args.Composite(**{item: None}))
        assert f"Plug-in '{name}' of group orbit_ckpt.items, package quant cannot be used" in (
            caplog.text
        )
    assert checkpointer.restore(tmp_path / "x", ocp.args.Composite(c=None)).c == 1


def test_a_composite_can_be_copied() -> None:
    found = copy.copy(ocp.args.Composite(a=1))
    assert found.a == 1


def without_records(path: Path) -> Path:
    """Make a checkpoint as Orbax did before it recorded handlers."""
    for name in ("_CHECKPOINT_METADATA", "orbit_manifest.json", "commit_success.txt"):
        for file in path.rglob(name):
            file.unlink()
    return path


def test_items_are_told_from_their_files_where_nothing_is_recorded(tmp_path: Path) -> None:
    handler = ocp.CompositeCheckpointHandler()
    ocp.Checkpointer(handler).save(tmp_path / "x", ocp.args.Composite(**every_item(ocp.args)))
    found = ocp.CompositeCheckpointHandler().restore(without_records(tmp_path / "x"))
    arrays = {name: found[name]["checkpoint"] for name in ("array", "scalar")}
    assert_every_item({**found, **arrays})  # an array is then a tree of one leaf


@pytest.mark.parametrize(
    "files",
    [{"proto.pbtxt": "a: 1"}, {"metadata": "not JSON"}, {"metadata": "{}", "other": "{}"}, {}],
    ids=["proto", "no-json", "two-files", "empty"],
)
def test_an_item_that_its_files_do_not_tell_needs_arguments(
    files: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "x" / "a").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "x" / "a" / name).write_text(text)
    handler = ocp.CompositeCheckpointHandler()
    with pytest.raises(ValueError, match=r"'a' was saved: nothing is recorded, and its files .*a="):
        handler.restore(tmp_path / "x")
    found: Any = handler.metadata(tmp_path / "x").item_metadata
    assert dict(found) == {"a": None}


def test_handlers_of_orbax_that_are_not_known_are_told_from_files(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    checkpointer.save(tmp_path / "x", ocp.args.Composite(a=ocp.args.JsonSave(1)))
    file = tmp_path / "x" / "_CHECKPOINT_METADATA"
    (tmp_path / "x" / "orbit_manifest.json").unlink()
    file.write_text(file.read_text().replace("._src.", ".experimental.v1._src."))
    assert ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore(tmp_path / "x").a == 1


def test_metrics_of_a_manager_are_a_json_item_without_a_manager_too(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"w": VALUES}, metrics={"loss": 2.0})
    found = ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore(tmp_path / "run" / "1")
    assert found.metrics == {"loss": 2.0}
