"""Handlers as users of Orbax write them: with Orbax, with orbit_ckpt, and Orbax's with orbit_ckpt.

The contracts that they keep are in `tests/contracts/test_handlers_for_orbax.py`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint._src.serialization import type_handler_registry

import orbit_ckpt
from orbit_ckpt.errors import CheckpointError, CorruptionError
from tests.interop.libraries import ORBAX, OURS, UNCHANGED, Library

pytestmark = pytest.mark.filterwarnings("ignore")  # Orbax's own

LIBRARIES = pytest.mark.parametrize("library", [ORBAX, OURS, UNCHANGED], ids=repr)
HERE = pytest.mark.parametrize("library", [OURS, UNCHANGED], ids=repr)
LAYOUTS = pytest.mark.parametrize("use_ocdbt", [True, False], ids=["database", "files"])

DAY = np.datetime64("2024-02-29")
ROWS = [[1.0, 2.0], [], [3.0]]


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    theirs: Any = type_handler_registry.GLOBAL_TYPE_HANDLER_REGISTRY
    for name in ("_type_registry", "_typestr_registry"):
        monkeypatch.setattr(theirs, name, getattr(theirs, name).copy())
    with orbit_ckpt.type_handlers.GLOBAL_TYPE_HANDLER_REGISTRY.scope():
        yield


def register(library: Library) -> None:
    """Register the type handlers as their users do."""
    user = library.user
    for ty, handler in (
        (user.Ragged, user.RaggedHandler()),
        (Decimal, user.PriceHandler()),
        (np.datetime64, user.DateHandler()),
    ):
        library.ocp.type_handlers.register_type_handler(ty, handler, override=True)


def tree_of(library: Library) -> dict[str, Any]:
    return {
        "rows": library.user.Ragged([row.copy() for row in ROWS]),
        "prices": [Decimal("1.25"), Decimal(-3)],
        "day": DAY,
        "w": jnp.arange(4.0),
        "n": np.arange(3),
        "step": 7,
    }


def check(tree: Any) -> None:
    assert tree["rows"].rows == ROWS
    assert list(tree["prices"]) == [Decimal("1.25"), Decimal(-3)]
    assert tree["day"] == DAY
    assert isinstance(tree["day"], np.datetime64)
    assert np.asarray(tree["w"]).tolist() == [0, 1, 2, 3]
    assert np.asarray(tree["n"]).tolist() == [0, 1, 2]
    assert tree["step"] == 7


def pytree(library: Library, *, use_ocdbt: bool) -> Any:
    return library.ocp.PyTreeCheckpointer(use_ocdbt=use_ocdbt, use_zarr3=False)


@LIBRARIES
@LAYOUTS
def test_leaves_of_own_types_are_saved_and_restored(
    library: Library, use_ocdbt: bool, tmp_path: Path
) -> None:
    register(library)
    with pytree(library, use_ocdbt=use_ocdbt) as checkpointer:
        checkpointer.save(tmp_path / "c", tree_of(library))
        check(checkpointer.restore(tmp_path / "c"))
        check(checkpointer.restore(tmp_path / "c", item=tree_of(library)))


@LIBRARIES
def test_leaves_of_own_types_are_restored_by_their_type(library: Library, tmp_path: Path) -> None:
    register(library)
    restore_args = library.ocp.RestoreArgs
    with pytree(library, use_ocdbt=True) as checkpointer:
        checkpointer.save(tmp_path / "c", {"rows": library.user.Ragged(ROWS), "day": DAY})
        wanted = {
            "rows": restore_args(restore_type=library.user.Ragged),
            "day": restore_args(restore_type=np.datetime64),
        }
        found = checkpointer.restore(tmp_path / "c", restore_args=wanted)
    assert found["rows"].rows == ROWS
    assert found["day"] == DAY


@HERE  # Orbax refuses types that it does not know by name
def test_a_standard_checkpointer_keeps_leaves_of_own_types(
    library: Library, tmp_path: Path
) -> None:
    register(library)
    with library.ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "c", tree_of(library))
        checkpointer.wait_until_finished()
        check(checkpointer.restore(tmp_path / "c"))


@LIBRARIES
def test_steps_of_a_manager_keep_leaves_of_own_types(library: Library, tmp_path: Path) -> None:
    register(library)
    args = library.ocp.args
    with library.ocp.CheckpointManager(tmp_path / "run") as manager:
        for step in range(2):
            manager.save(step, args=args.PyTreeSave(tree_of(library)))
        manager.wait_until_finished()
        check(manager.restore(1, args=args.PyTreeRestore()))
        assert manager.all_steps() == [0, 1]


@LAYOUTS
@LIBRARIES
@pytest.mark.parametrize("reader", [ORBAX, OURS, UNCHANGED], ids=repr)
def test_checkpoints_are_exchanged(
    library: Library, reader: Library, use_ocdbt: bool, tmp_path: Path
) -> None:
    register(library)
    with pytree(library, use_ocdbt=use_ocdbt) as checkpointer:
        checkpointer.save(tmp_path / "c", tree_of(library))
    register(reader)
    with pytree(reader, use_ocdbt=use_ocdbt) as checkpointer:
        check(checkpointer.restore(tmp_path / "c"))


@HERE
@LAYOUTS
def test_what_such_a_handler_wrote_is_verified(
    library: Library, use_ocdbt: bool, tmp_path: Path
) -> None:
    register(library)
    rows = np.random.default_rng(1).random((3, 3000)).tolist()
    with pytree(library, use_ocdbt=use_ocdbt) as checkpointer:
        checkpointer.save(tmp_path / "c", {"rows": library.user.Ragged(rows)})
        assert orbit_ckpt.verify(tmp_path / "c").is_intact
        data = max(tmp_path.rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
        damaged = bytearray(data.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        data.write_bytes(damaged)
        assert not orbit_ckpt.verify(tmp_path / "c").is_intact
        with pytest.raises(CorruptionError):
            checkpointer.restore(tmp_path / "c")


@HERE
def test_a_background_save_keeps_values_of_its_start(library: Library, tmp_path: Path) -> None:
    register(library)
    tree = tree_of(library)
    handler = library.ocp.PyTreeCheckpointHandler()
    with library.ocp.AsyncCheckpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "c", tree)
        tree["rows"].rows[0][0] = tree["n"][0] = -1
        checkpointer.wait_until_finished()
        check(checkpointer.restore(tmp_path / "c"))


ITEM = {"names": {"a", "b"}, "shape": (3, None)}


@LIBRARIES
def test_a_handler_without_argument_classes_saves_what_it_is_given(
    library: Library, tmp_path: Path
) -> None:
    with library.ocp.Checkpointer(library.user.PickleHandler()) as checkpointer:
        checkpointer.save(tmp_path / "a", ITEM)
        checkpointer.save(tmp_path / "b", item=ITEM)
        assert checkpointer.restore(tmp_path / "a") == ITEM
        assert checkpointer.restore(tmp_path / "b", item=None) == ITEM


@LIBRARIES
def test_pickles_are_exchanged(library: Library, tmp_path: Path) -> None:
    library.ocp.Checkpointer(library.user.PickleHandler()).save(tmp_path / "a", ITEM)
    for reader in (ORBAX, OURS, UNCHANGED):
        checkpointer = reader.ocp.Checkpointer(reader.user.PickleHandler())
        assert checkpointer.restore(tmp_path / "a") == ITEM


@LIBRARIES
def test_a_legacy_manager_saves_such_an_item_beside_others(
    library: Library, tmp_path: Path
) -> None:
    ocp = library.ocp
    checkpointers = {
        "state": ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()),
        "vocabulary": ocp.Checkpointer(library.user.PickleHandler()),
    }
    with ocp.CheckpointManager(tmp_path / "run", checkpointers) as manager:
        manager.save(3, {"state": {"w": np.arange(3)}, "vocabulary": ITEM})
        manager.wait_until_finished()
        found = manager.restore(3)
        assert found["vocabulary"] == ITEM
        assert found["state"]["w"].tolist() == [0, 1, 2]
        assert dict(manager.restore(3, items={"vocabulary": None}))["vocabulary"] == ITEM


@LIBRARIES
def test_a_manager_of_one_item_saves_what_such_a_handler_is_given(
    library: Library, tmp_path: Path
) -> None:
    handler = library.user.PickleHandler()
    with library.ocp.CheckpointManager(tmp_path / "run", item_handlers=handler) as manager:
        manager.save(0, ITEM)
        assert manager.restore(0) == ITEM


@LIBRARIES
def test_several_named_items_need_argument_classes(library: Library, tmp_path: Path) -> None:
    ocp = library.ocp
    composite = ocp.CompositeCheckpointHandler(vocabulary=library.user.PickleHandler())
    checkpointer = ocp.Checkpointer(composite)
    with pytest.raises((TypeError, ValueError), match="CheckpointArgs"):
        checkpointer.save(tmp_path / "a", vocabulary=ITEM)
    with pytest.raises(ValueError, match="vocabulary"):
        checkpointer.save(tmp_path / "b", ocp.args.Composite(vocabulary=ocp.args.JsonSave(1)))
    assert list(tmp_path.iterdir()) == [] or library is ORBAX


def manager_with_assets(library: Library, directory: Path) -> Any:
    """Return a manager as openpi makes it."""
    ocp = library.ocp
    return ocp.CheckpointManager(
        directory,
        item_handlers={
            "assets": library.user.CallbackHandler(),
            "train_state": ocp.PyTreeCheckpointHandler(),
            "params": ocp.PyTreeCheckpointHandler(),
        },
        options=ocp.CheckpointManagerOptions(
            max_to_keep=1,
            keep_period=2,
            create=False,
            async_options=ocp.AsyncOptions(timeout_secs=7200),
        ),
    )


def save_with_assets(
    library: Library, manager: Any, step: int, callback: Callable[[Any], None]
) -> None:
    """Save a step as openpi does."""
    items = {
        "assets": library.user.CallbackSave(callback),
        "train_state": library.ocp.args.PyTreeSave({"w": jnp.arange(3) + step}),
        "params": library.ocp.args.PyTreeSave({"params": {"w": np.arange(3)}}),
    }
    manager.save(step, args=library.ocp.args.Composite(**items))


@LIBRARIES
def test_a_callback_writes_assets_beside_trees_in_the_background(
    library: Library, tmp_path: Path
) -> None:
    def save_assets(directory: Any) -> None:
        (directory / "norm_stats").mkdir(parents=True, exist_ok=True)
        (directory / "norm_stats" / "mean.txt").write_text("0.5")

    with manager_with_assets(library, tmp_path) as manager:
        for step in range(4):
            save_with_assets(library, manager, step, save_assets)
        manager.wait_until_finished()
        assert manager.all_steps() == [0, 2, 3]
        args = library.ocp.args
        wanted = args.Composite(train_state=args.PyTreeRestore(), params=args.PyTreeRestore())
        found = manager.restore(3, args=wanted)
    assert np.asarray(found["train_state"]["w"]).tolist() == [3, 4, 5]
    assert found["params"]["params"]["w"].tolist() == [0, 1, 2]
    for step in (0, 2, 3):
        assert (tmp_path / str(step) / "assets" / "norm_stats" / "mean.txt").read_text() == "0.5"
    with manager_with_assets(library, tmp_path) as manager:
        wanted = args.Composite(assets=library.user.CallbackRestore())
        with pytest.raises(NotImplementedError, match="does not support restore"):
            manager.restore(3, args=wanted)


@LIBRARIES
def test_a_save_returns_before_its_callback_has_ended(library: Library, tmp_path: Path) -> None:
    has_returned = threading.Event()

    def save_assets(directory: Any) -> None:
        assert has_returned.wait(60)
        (directory / "done").write_text("yes")

    with manager_with_assets(library, tmp_path) as manager:
        save_with_assets(library, manager, 0, save_assets)
        has_returned.set()
        manager.wait_until_finished()
        assert manager.latest_step() == 0
    assert (tmp_path / "0" / "assets" / "done").read_text() == "yes"


@LIBRARIES
def test_a_step_whose_callback_fails_does_not_appear(library: Library, tmp_path: Path) -> None:
    def fail(directory: Any) -> None:
        del directory
        raise RuntimeError("no statistics")

    manager = manager_with_assets(library, tmp_path)
    save_with_assets(library, manager, 0, fail)
    with pytest.raises((RuntimeError, CheckpointError), match="no statistics"):
        manager.wait_until_finished()
    assert manager.all_steps() == []
    with contextlib.suppress(RuntimeError, CheckpointError):
        manager.close()


@HERE
def test_a_failed_save_waits_for_callbacks_before_it_removes_their_directory(
    library: Library, tmp_path: Path
) -> None:
    written = threading.Event()

    def save_assets(directory: Any) -> None:
        assert fails.wait(60)
        (directory / "late" / "assets").mkdir(parents=True)
        written.set()

    class Failing(library.ocp.JsonCheckpointHandler):  # type: ignore[misc, name-defined]
        async def stage(self, *_: Any, **__: Any) -> Any:
            fails.set()
            raise RuntimeError("not this one")

    fails = threading.Event()
    composite = library.ocp.CompositeCheckpointHandler(
        assets=library.user.CallbackHandler(), broken=Failing()
    )
    items = {
        "assets": library.user.CallbackSave(save_assets),
        "broken": library.ocp.args.JsonSave(1),
    }
    with pytest.raises(RuntimeError, match="not this one"):
        library.ocp.Checkpointer(composite).save(
            tmp_path / "c", args=library.ocp.args.Composite(**items)
        )
    assert written.is_set()
    assert list(tmp_path.iterdir()) == []


@LIBRARIES
def test_a_handler_returns_futures_of_its_own_executor(library: Library, tmp_path: Path) -> None:
    ocp = library.ocp
    options = ocp.CheckpointManagerOptions(
        async_options=ocp.AsyncOptions(create_directories_asynchronously=False)
    )
    handlers = {"notes": library.user.NotesHandler(), "state": ocp.StandardCheckpointHandler()}
    args = ocp.args
    with ocp.CheckpointManager(tmp_path, item_handlers=handlers, options=options) as manager:
        items = {"notes": library.user.NotesSave("ä"), "state": args.StandardSave({"n": 1})}
        manager.save(0, args=args.Composite(**items))
        manager.wait_until_finished()
        wanted = args.Composite(notes=library.user.NotesRestore(), state=args.StandardRestore())
        assert dict(manager.restore(0, args=wanted)) == {"notes": "ä", "state": {"n": 1}}
