"""Options of tree handlers that say when leaves are copied, and who saves or checks them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.items.pytree import memory_within
from orbit_ckpt._src.storage import batch_write
from orbit_ckpt.errors import BackgroundSaveError, UnsupportedLeafError
from orbit_ckpt.testing.background import held_commits
from orbit_ckpt.type_handlers import (
    ArrayHandler,
    NumpyHandler,
    SerializationStatusCallback,
    TransferPriority,
    create_type_handler_registry,
)
from tests.support import assert_same_tree, put

LATER = TransferPriority.ASYNCHRONOUS_DEPRIORITIZED
SOONER = TransferPriority.ASYNCHRONOUS_PRIORITIZED
FIRST = TransferPriority.SYNCHRONOUS


class Limit:
    """The options of a transfer limit, under Orbax's name."""

    def __init__(self, gigabytes: float | None) -> None:
        self.max_transfer_concurrent_gb = gigabytes


def by_name(**priorities: TransferPriority) -> Any:
    """Return a function that gives leaves their priorities by their last key."""
    return lambda keypath: priorities.get(keypath[-1].key, FIRST)


def save(path: Path, tree: Any, handler: ocp.PyTreeHandler) -> ocp.AsyncCheckpointer:
    """Start a save."""
    checkpointer = ocp.AsyncCheckpointer(handler)
    checkpointer.save(path, tree)
    return checkpointer


class Log(SerializationStatusCallback):
    """Notes what is reported."""

    def __init__(self, **priorities: TransferPriority) -> None:
        self.lines: list[str] = []
        self._priorities = priorities
        self._lock = threading.Lock()

    def _note(self, what: str, keypath: Any) -> None:
        with self._lock:
            self.lines.append(f"{what} {jax.tree_util.keystr(keypath)}")

    @override
    def key_priority(self, keypath: Any) -> TransferPriority:
        return self._priorities.get(keypath[-1].key, FIRST)

    @override
    def on_transfer_start(self, keypath: Any) -> None:
        self._note("transfer", keypath)

    @override
    def on_transfer_end(self, keypath: Any) -> None:
        self._note("transferred", keypath)

    @override
    def on_write_start(self, keypath: Any) -> None:
        self._note("write", keypath)

    @override
    def on_write_end(self, keypath: Any) -> None:
        self._note("written", keypath)


def watched(log: Log, **options: Any) -> ocp.PyTreeHandler:
    """Return a handler whose JAX arrays are reported."""
    registry = create_type_handler_registry((jax.Array, ArrayHandler(callback=log)))
    return ocp.PyTreeHandler(type_handler_registry=registry, **options)


@pytest.mark.parametrize("use_callback", [False, True], ids=["function", "callback"])
def test_arrays_that_are_not_synchronous_are_read_when_they_are_written(
    use_callback: bool, tmp_path: Path
) -> None:
    tree = {"soon": put(np.arange(16.0), "x", x=8), "late": put(np.arange(16.0), "x", x=8)}
    options: dict[str, Any] = {"save_device_host_concurrent_gb": 1}
    if use_callback:
        handler = watched(Log(late=LATER), **options)
    else:
        handler = ocp.PyTreeHandler(is_prioritized_key_fn=by_name(late=LATER), **options)
    with held_commits() as go:
        first = save(tmp_path / "1", tree, handler)
        tree["soon"].delete()
        go.set()
        first.wait_until_finished()
    assert_same_tree(ocp.load(tmp_path / "1")["soon"], put(np.arange(16.0), "x", x=8))
    tree["soon"] = tree["late"]
    with held_commits() as go:
        second = save(tmp_path / "2", tree, handler)
        tree["late"].delete()
        go.set()
        with pytest.raises(BackgroundSaveError) as caught:
            second.wait_until_finished()
    assert isinstance(caught.value.__cause__, UnsupportedLeafError)
    assert "late: the array was deleted or donated before it was written" in str(
        caught.value.__cause__
    )
    assert not (tmp_path / "2").exists()


def test_without_a_limit_of_transfers_all_arrays_are_copied_at_once(tmp_path: Path) -> None:
    tree = {"late": jnp.arange(16.0)}
    handler = ocp.PyTreeHandler(is_prioritized_key_fn=by_name(late=LATER))
    with held_commits() as go:
        pending = save(tmp_path / "1", tree, handler)
        tree["late"].delete()
        go.set()
        pending.wait_until_finished()
    assert_same_tree(ocp.load(tmp_path / "1"), {"late": jnp.arange(16.0)})


def test_numpy_arrays_are_copied_whatever_their_priority(tmp_path: Path) -> None:
    tree = {"late": np.arange(16.0)}
    handler = ocp.PyTreeHandler(
        is_prioritized_key_fn=by_name(late=LATER), memory_limit_options=Limit(1)
    )
    with held_commits() as go:
        pending = save(tmp_path / "1", tree, handler)
        tree["late"][:] = 0
        go.set()
        pending.wait_until_finished()
    assert_same_tree(ocp.load(tmp_path / "1"), {"late": np.arange(16.0)})


def test_an_unknown_priority_is_an_error(tmp_path: Path) -> None:
    handler = ocp.PyTreeHandler(
        is_prioritized_key_fn=lambda _: TransferPriority.UNKNOWN,
        save_device_host_concurrent_gb=1,
    )
    with pytest.raises(ValueError, match=r"a/b: its priority is .*UNKNOWN.*Return one of"):
        save(tmp_path / "1", {"a": {"b": jnp.arange(3)}}, handler)


def test_a_callback_hears_of_transfers_before_the_save_returns_and_of_writes_after(
    tmp_path: Path,
) -> None:
    log = Log()
    tree = {"a": put(np.arange(16.0), "x", x=8), "b": jnp.zeros((0, 3)), "c": np.arange(3)}
    with held_commits() as go:
        pending = save(tmp_path / "1", tree, watched(log))
        assert sorted(log.lines) == [
            *("transfer ['a']", "transfer ['b']", "transferred ['a']", "transferred ['b']")
        ]
        go.set()
        pending.wait_until_finished()
    assert sorted(log.lines[4:]) == [
        *("write ['a']", "write ['b']", "written ['a']", "written ['b']")
    ]


def test_a_callback_hears_of_a_save_in_the_foreground(tmp_path: Path) -> None:
    log = Log()
    ocp.Checkpointer(watched(log)).save(tmp_path / "1", {"a": jnp.arange(4)})
    assert sorted(log.lines) == [
        *("transfer ['a']", "transferred ['a']", "write ['a']", "written ['a']")
    ]


def test_prioritized_arrays_are_written_before_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_write, "THREADS", 1)
    log = Log(a=LATER, b=SOONER)
    tree = {name: jnp.arange(4.0) for name in "abc"}
    handler = watched(log, save_device_host_concurrent_gb=1e-9)
    save(tmp_path / "1", tree, handler).wait_until_finished()
    written = [line for line in log.lines if line.startswith("written")]
    assert written == ["written ['c']", "written ['b']", "written ['a']"]


def test_an_error_of_a_callback_fails_the_save(tmp_path: Path) -> None:
    class Bad(Log):
        @override
        def on_write_end(self, keypath: Any) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        ocp.Checkpointer(watched(Bad())).save(tmp_path / "1", {"a": jnp.arange(4)})
    assert not (tmp_path / "1").exists()


def test_host_arrays_that_are_not_copied_are_saved_as_they_are_when_written(
    tmp_path: Path,
) -> None:
    registry = create_type_handler_registry((np.ndarray, NumpyHandler(deepcopy_host_arrays=False)))
    tree = {"a": np.arange(4.0), "b": jnp.arange(3)}
    with held_commits() as go:
        pending = save(tmp_path / "1", tree, ocp.PyTreeHandler(type_handler_registry=registry))
        tree["a"][0] = 7
        go.set()
        pending.wait_until_finished()
    assert_same_tree(ocp.load(tmp_path / "1"), {"a": np.array([7.0, 1, 2, 3]), "b": jnp.arange(3)})


@pytest.mark.parametrize(
    ("given", "limit", "expected"),
    [
        (None, 2, 2 * 10**9),
        (3, 2, 2 * 10**9),
        (1, 2, 10**9),
        (1, None, 10**9),
        (None, None, None),
        ("auto", 1e-6, 1000),
    ],
)
def test_memory_limit_options_are_an_upper_limit_of_transfers(
    given: Any, limit: float | None, expected: int | None
) -> None:
    memory = memory_within(None, None, None, given, Limit(limit))
    assert memory.max_transfer_bytes == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"memory_limit_options": 3}, TypeError, "max_transfer_concurrent_gb=8"),
        ({"memory_limit_options": Limit(0)}, ValueError, "max_transfer_concurrent_gb must be pos"),
        ({"is_prioritized_key_fn": 3}, TypeError, "TransferPriority"),
        ({"array_metadata_validator": 3}, TypeError, "validate_all_array_metadatas"),
        ({"handler_impl": 3}, TypeError, "handler_impl must be an item handler"),
    ],
)
def test_options_of_other_types_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ocp.PyTreeHandler(**options)


class Validator:
    """Notes the records that it checks."""

    def __init__(self, error: str = "") -> None:
        self.seen: dict[int, list[Any]] = {}
        self.error = error

    def validate_all_array_metadatas(self, array_metadatas: dict[int, list[Any]]) -> None:
        """Check the records of all processes."""
        self.seen = array_metadatas
        if self.error:
            raise ValueError(self.error)


def test_a_validator_checks_the_records_of_all_jax_arrays(tmp_path: Path) -> None:
    validator = Validator()
    tree = {"a": put(np.arange(16.0), "x", x=8), "key": jax.random.key(0), "n": np.arange(2)}
    handler = ocp.PyTreeHandler(array_metadata_validator=validator)
    ocp.Checkpointer(handler).save(tmp_path / "1", tree)
    (records,) = validator.seen.values()
    assert [(r.param_name, r.write_shape, r.chunk_shape, r.ext_metadata) for r in records] == [
        ("a", (2,), (2,), None),
        ("key", (2,), (2,), {"random_key_impl": "threefry2x32"}),
    ]


def test_a_validator_can_refuse_a_checkpoint(tmp_path: Path) -> None:
    handler = ocp.PyTreeHandler(array_metadata_validator=Validator("they differ"))
    with pytest.raises(ValueError, match="they differ"):
        ocp.Checkpointer(handler).save(tmp_path / "1", {"a": jnp.arange(3)})
    assert not (tmp_path / "1").exists()


class Doubling(ocp.PyTreeHandler):
    """Saves twice the numbers, and notes what it is asked."""

    calls: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    @override
    async def stage(self, directory: Path, args: Any, *, copy: bool) -> Any:
        self.calls.append("stage")
        doubled = ocp.args.PyTreeSave(jax.tree.map(lambda x: 2 * x, args.item))
        return await super().stage(directory, doubled, copy=copy)

    @override
    def restore(self, *args: Any, **kwargs: Any) -> object:
        self.calls.append("restore")
        return super().restore(*args, **kwargs)

    @override
    def metadata(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("metadata")
        return super().metadata(*args, **kwargs)

    @override
    def close(self) -> None:
        self.calls.append("close")


def test_another_implementation_saves_and_restores(tmp_path: Path) -> None:
    impl = Doubling()
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler(handler_impl=impl)) as checkpointer:
        checkpointer.save(tmp_path / "1", {"a": np.arange(3)})
        checkpointer.wait_until_finished()
        assert_same_tree(checkpointer.restore(tmp_path / "1"), {"a": np.arange(3) * 2})
        described: Any = checkpointer.metadata(tmp_path / "1").item_metadata
    assert described["a"].shape == (3,)
    assert impl.calls == ["stage", "restore", "metadata", "close"]


class Tagged:
    """A leaf with a unit."""

    def __init__(self, values: np.ndarray, unit: str) -> None:
        self.values = values
        self.unit = unit


class TaggedHandler(NumpyHandler):
    """Stores the unit of a leaf next to its shapes."""

    @override
    def typestr(self) -> str:
        return "tagged"

    @override
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        for value, info in zip(values, infos, strict=True):
            info.ext_metadata = {"unit": value.unit}
        return await super().serialize([value.values for value in values], infos, args)

    @override
    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        arrays: Any = await super().deserialize(infos, args)
        return [Tagged(a, i.ext_metadata["unit"]) for a, i in zip(arrays, infos, strict=True)]


@pytest.mark.parametrize("copy", [False, True], ids=["foreground", "background"])
def test_a_type_handler_records_json_of_each_leaf(copy: bool, tmp_path: Path) -> None:
    registry = create_type_handler_registry((Tagged, TaggedHandler()))
    handler = ocp.PyTreeHandler(type_handler_registry=registry)
    tree = {"a": Tagged(np.arange(3), "m"), "b": Tagged(np.arange(2), "s"), "c": jnp.arange(4)}
    kind = ocp.AsyncCheckpointer if copy else ocp.Checkpointer
    with kind(handler) as checkpointer:
        checkpointer.save(tmp_path / "1", tree)
    found = ocp.Checkpointer(handler).restore(tmp_path / "1")
    assert [(found[k].unit, list(found[k].values)) for k in "ab"] == [
        ("m", [0, 1, 2]),
        ("s", [0, 1]),
    ]
    assert ocp.verify(tmp_path / "1").is_intact


def test_json_of_a_leaf_that_is_not_json_is_an_error(tmp_path: Path) -> None:
    registry = create_type_handler_registry((Tagged, TaggedHandler()))
    handler = ocp.PyTreeHandler(type_handler_registry=registry)
    bad: Any = object()
    with pytest.raises(TypeError, match="a: ext_metadata must be a JSON value"):
        ocp.Checkpointer(handler).save(tmp_path / "1", {"a": Tagged(np.arange(3), bad)})
