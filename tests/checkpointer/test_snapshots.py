"""What background saves write of arrays that their caller donates, deletes or changes at once."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays import transfer
from orbit_ckpt._src.arrays.device_copies import DeviceBudgets, DeviceCopy, copies_of
from orbit_ckpt._src.arrays.memory import aligned_empty
from orbit_ckpt._src.arrays.snapshot import Snapshots
from orbit_ckpt.errors import UnsupportedLeafError
from orbit_ckpt.testing.background import held_commits
from tests.forks import in_child
from tests.support import LAYOUTS, put

SIZE = 1 << 16
MODES = ["auto", "reference", "copy", "device"]


@jax.jit
def double(x: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * 2, x)


def aligned(value: float) -> np.ndarray:
    """Return an array in memory that JAX shares."""
    values = aligned_empty((SIZE,), np.dtype(np.float32))
    values[:] = value
    return values


def outputs(value: float) -> dict[str, jax.Array]:
    """Return large and small outputs of a program, on one and on several devices."""
    return double(
        {
            "one": jnp.full(SIZE, value / 2),
            "matrix": jnp.full((300, 200), value / 2, jnp.bfloat16),
            "sharded": put(np.full((SIZE, 2), value / 2), "x", x=8),
            "replicated": put(np.full(SIZE, value / 2), x=8),
            "small": jnp.full(3, value / 2),
        }
    )


def assert_saved(path: Path, value: float) -> None:
    for name, leaf in ocp.load(path).items():
        assert (np.asarray(leaf) == value).all(), name


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the arrays that saves have copied to memory of their own."""
    seen: list[int] = []
    copy = transfer._copy

    def spy(data: Any, *args: Any) -> Any:
        seen.append(data.nbytes)
        return copy(data, *args)

    monkeypatch.setattr(transfer, "_copy", spy)
    return seen


def test_outputs_of_programs_are_not_copied(copies: list[int], tmp_path: Path) -> None:
    ocp.save_async(tmp_path / "x", outputs(4)).result()
    assert_saved(tmp_path / "x", 4)
    assert not copies


def test_arrays_that_may_share_memory_are_copied(copies: list[int], tmp_path: Path) -> None:
    source = aligned(1)
    tree = {
        "put": jax.device_put(source),
        "sharded": put(source, "x", x=8),
        "dlpack": jnp.from_dlpack(source),
        "callback": jax.make_array_from_callback(
            source.shape, put(np.ones(8), "x", x=4).sharding, lambda index: source[index]
        ),
        "numpy": source,
    }
    with held_commits():
        handle = ocp.save_async(tmp_path / "x", tree)
        source[:] = -1
    handle.result()
    assert_saved(tmp_path / "x", 1)
    assert sum(copies) >= 3 * source.nbytes


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_loop_that_donates_its_state_saves_every_state(
    mode: Any, is_held: bool, tmp_path: Path
) -> None:
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = outputs(0)
    options = ocp.AsyncOptions(snapshot=mode)
    with ocp.StandardCheckpointer(async_options=options) as checkpointer:
        for number in range(4):
            with held_commits() as go:
                if not is_held:
                    go.set()
                checkpointer.save(tmp_path / str(number), state)
                for _ in range(3):
                    state = step(state)
                jax.block_until_ready(state)
            checkpointer.wait_until_finished()
    for number in range(4):
        assert_saved(tmp_path / str(number), 3 * number)


def test_saves_copy_while_arrays_are_donated(copies: list[int], tmp_path: Path) -> None:
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = outputs(0)
    has_copied: list[bool] = []
    with ocp.StandardCheckpointer() as checkpointer:
        for number, donates in enumerate([False, True, True, False, False]):
            copies.clear()
            with held_commits():
                checkpointer.save(tmp_path / str(number), state)
                state = step(state) if donates else double(state)
                jax.block_until_ready(state)
            checkpointer.wait_until_finished()
            has_copied.append(bool(copies))
    assert has_copied == [False, False, True, True, False]


def test_copies_use_the_memory_of_the_last_save(tmp_path: Path) -> None:
    state = {"a": double(jnp.ones(1 << 20)), "b": double(jnp.ones((3 << 20) + 5))}
    options = ocp.AsyncOptions(snapshot="copy")
    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeHandler(), async_options=options)
    kept = checkpointer._snapshots.memory
    for number in range(3):
        checkpointer.save(tmp_path / str(number), state)
        assert not kept.nbytes
        checkpointer.wait_until_finished()
        assert 16 << 20 <= kept.nbytes <= 24 << 20
        state = double(state)
    assert in_child(lambda: kept.nbytes) == 0
    checkpointer.close()
    assert not kept.nbytes
    for number in range(3):
        assert_saved(tmp_path / str(number), 2 ** (number + 1))


def test_kept_memory_is_bounded(tmp_path: Path) -> None:
    options = ocp.AsyncOptions(snapshot="copy", kept_memory_bytes=9 << 20)
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler(), async_options=options) as checkpointer:
        checkpointer.save(tmp_path / "x", [double(jnp.ones(1 << 20)) for _ in range(6)])
        checkpointer.wait_until_finished()
        assert checkpointer._snapshots.memory.nbytes == 8 << 20


@pytest.fixture
def device_copies(monkeypatch: pytest.MonkeyPatch) -> list[DeviceCopy]:
    """The copies that saves have made on devices."""
    seen: list[DeviceCopy] = []

    def spy(makers: Any) -> Any:
        copies = copies_of(makers)
        seen.extend(copy for copy in copies if copy is not None)
        return copies

    monkeypatch.setattr(transfer, "copies_of", spy)
    return seen


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_on_devices_are_freed_as_they_are_written(
    layout: Any, device_copies: list[DeviceCopy], tmp_path: Path
) -> None:
    state = outputs(3)
    options = ocp.AsyncOptions(snapshot="device")
    handler = ocp.PyTreeHandler(**layout)
    with ocp.AsyncCheckpointer(handler, async_options=options) as checkpointer:
        with held_commits():
            checkpointer.save(tmp_path / "x", state)
            assert len(device_copies) == 1 + 1 + 8 + 1 + 1
            assert not any(copy.array.is_deleted() for copy in device_copies)
            for leaf in state.values():
                leaf.delete()
        checkpointer.wait_until_finished()
    assert all(copy.array.is_deleted() for copy in device_copies)
    assert_saved(tmp_path / "x", 3)


@pytest.mark.parametrize("budget", [0, 100_000, 300_000])
def test_what_does_not_fit_on_a_device_is_copied_to_the_host(
    budget: int, device_copies: list[DeviceCopy], tmp_path: Path
) -> None:
    def stats(device: jax.Device) -> dict[str, int]:
        is_full = device.id == 3
        return {"bytes_limit": 0 if is_full else 2 * budget, "bytes_in_use": 0}

    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = outputs(0)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer._snapshots = Snapshots("device", budgets=DeviceBudgets(stats))
        for number in range(3):
            device_copies.clear()
            with held_commits():
                checkpointer.save(tmp_path / str(number), state)
                state = jax.block_until_ready(step(state))
            checkpointer.wait_until_finished()
            taken = dict.fromkeys(jax.devices(), 0)
            for copy in device_copies:
                taken[next(iter(copy.array.sharding.device_set))] += copy.array.nbytes
            assert max(taken.values()) <= budget
            assert bool(device_copies) is bool(budget)
            assert taken[jax.devices()[3]] == 0
    for number in range(3):
        assert_saved(tmp_path / str(number), number)


def test_all_transfers_begin_before_the_first_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    events: list[str] = []
    begin, fetch = transfer.begin_transfer, transfer._fetched

    def begin_watched(data: Any, **options: Any) -> Any:
        events.append("begin")
        return begin(data, **options)

    def fetch_watched(*args: Any) -> Any:
        events.append("end")
        return fetch(*args)

    monkeypatch.setattr(transfer, "begin_transfer", begin_watched)
    monkeypatch.setattr(transfer, "_fetched", fetch_watched)
    monkeypatch.setattr(transfer, "is_on_host", lambda data: not isinstance(data, jax.Array))
    state = [jnp.full(1 << 22, i) for i in range(5)]  # several tasks' worth
    ocp.save_async(tmp_path / "x", state).result()
    assert events == ["begin"] * 5 + ["end"] * 5
    assert [leaf[7] for leaf in ocp.load(tmp_path / "x")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"snapshot": "fast"}, ValueError, "snapshot must be one of 'auto', .*found 'fast'"),
        ({"snapshot": True}, TypeError, "snapshot must be one of 'auto', .*found True"),
        ({"kept_memory_bytes": -1}, ValueError, "kept_memory_bytes must be at least 0"),
        ({"kept_memory_bytes": 1.5}, TypeError, "kept_memory_bytes must be an integer"),
        ({"kept_memory_secs": 0}, ValueError, "kept_memory_secs"),
        ({"kept_memory_secs": "1"}, TypeError, "kept_memory_secs"),
    ],
)
def test_wrong_options_are_refused(
    wrong: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        ocp.AsyncOptions(**wrong)


def test_arrays_may_be_deleted_during_a_save(tmp_path: Path) -> None:
    state = outputs(2)
    with held_commits():
        handle = ocp.save_async(tmp_path / "x", state)
        for name in list(state):
            state.pop(name).delete()
        others = [outputs(9) for _ in range(3)]
        jax.block_until_ready(others)
    handle.result()
    assert_saved(tmp_path / "x", 2)


def write_into(array: jax.Array, at: slice = slice(None)) -> None:
    """Change an array in place, as only code outside JAX can."""
    view = np.asarray(array)
    memory = (ctypes.c_char * view.nbytes).from_address(view.ctypes.data)
    np.frombuffer(memory, view.dtype).reshape(view.shape)[at] = -1


@pytest.mark.parametrize("at", [slice(None), slice(3000, 6000)], ids=["all", "some"])
def test_a_leaf_that_changes_during_a_save_fails_it(at: slice, tmp_path: Path) -> None:
    state = {"layer": {"kernel": double(jnp.ones(SIZE)), "bias": double(jnp.ones(SIZE))}}
    with held_commits():
        handle = ocp.save_async(tmp_path / "x", state)
        write_into(state["layer"]["kernel"], at)
    with pytest.raises(UnsupportedLeafError, match=r"layer/kernel: changed while") as caught:
        handle.result()
    assert caught.value.paths == ("layer/kernel",)
    assert not list(tmp_path.iterdir())


def test_a_manager_does_not_list_a_step_that_changed_during_its_save(tmp_path: Path) -> None:
    state = {"w": double(jnp.ones(SIZE))}
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        with held_commits():
            manager.save(2, args=ocp.args.StandardSave(state))
            write_into(state["w"])
        with pytest.raises(ocp.errors.BackgroundSaveError, match="w: changed while"):
            manager.wait_until_finished()
        assert manager.all_steps() == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]


def test_handlers_that_write_at_once_get_the_same_guarantees(tmp_path: Path) -> None:
    class Handler(ocp.type_handlers.ArrayHandler):
        async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
            return await super().serialize(values, infos, args)

    registry = ocp.type_handlers.create_type_handler_registry((jax.Array, Handler()))
    handler = ocp.PyTreeHandler(type_handler_registry=registry)
    state = outputs(6)
    source = aligned(6)
    state["put"] = jax.device_put(source)
    with ocp.AsyncCheckpointer(handler) as checkpointer, held_commits():
        checkpointer.save(tmp_path / "x", state)
        source[:] = -1
        jax.block_until_ready(jax.jit(double, donate_argnums=0)(state))
    assert_saved(tmp_path / "x", 6)
