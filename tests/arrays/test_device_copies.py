"""Copies on devices: what room there is for them, and when they are freed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orbit_ckpt._src.arrays import device_copies, snapshot, transfer
from orbit_ckpt._src.arrays.device_copies import DeviceBudgets, DeviceCopy, copies_of
from orbit_ckpt._src.arrays.snapshot import SnapshotMode, Snapshots
from orbit_ckpt._src.arrays.transfer import begin_transfers, copy_to_host, shards_of

DEVICE: Any = jax.devices()[0]


def budgets(*stats: dict[str, int] | None) -> DeviceBudgets:
    """Return the budgets of devices that report these statistics, one after the other."""
    reports = iter(stats)
    return DeviceBudgets(lambda _: next(reports))


def usage(limit: int, in_use: int, peak: int) -> dict[str, int]:
    return {"bytes_limit": limit, "bytes_in_use": in_use, "peak_bytes_in_use": peak}


def test_copies_take_half_of_what_training_has_never_used() -> None:
    assert budgets(usage(1000, 300, 600)).free_bytes(DEVICE) == 200
    assert budgets({"bytes_limit": 1000, "bytes_in_use": 300}).free_bytes(DEVICE) == 350
    assert budgets(usage(1000, 300, 1000)).free_bytes(DEVICE) == 0


@pytest.mark.parametrize("stats", [None, {}, {"bytes_in_use": 5}])
def test_a_device_may_not_report_its_memory(stats: dict[str, int] | None) -> None:
    assert budgets(stats).free_bytes(DEVICE) is None
    assert DeviceBudgets().free_bytes(DEVICE) is None  # a CPU


def test_copies_of_earlier_saves_are_no_part_of_training() -> None:
    reports = [usage(1000, 300, 600), usage(1000, 300, 780), usage(1000, 300, 900)]
    room = budgets(*reports)
    assert room.free_bytes(DEVICE) == 200
    room.note_copied(DEVICE, 200)
    assert room.free_bytes(DEVICE) == 200  # 780 is 600 and a part of the copies
    room.note_copied(DEVICE, 50)
    assert room.free_bytes(DEVICE) == 150  # training has used 700


class Accelerator:
    platform = "tpu"


@pytest.mark.parametrize(
    ("mode", "free", "expected"),
    [
        ("auto", 100, [True, True, False, True]),
        ("auto", None, [False] * 4),
        ("device", 100, [True, True, False, True]),
        ("device", None, [True] * 4),
        ("reference", 100, [False] * 4),
        ("copy", 100, [False] * 4),
    ],
)
def test_leaves_are_copied_on_accelerators_one_by_one(
    monkeypatch: pytest.MonkeyPatch, mode: SnapshotMode, free: int | None, expected: list[bool]
) -> None:
    device = Accelerator()
    monkeypatch.setattr(snapshot, "device_of", lambda _: device)
    monkeypatch.setattr(snapshot, "is_in_device_memory", lambda _: True)
    stats = None if free is None else usage(2 * free, 0, 0)
    snapshots = Snapshots(mode, budgets=DeviceBudgets(lambda _: stats))
    for _ in range(2):  # the room is free again in the next save
        with snapshots.taking():
            found = [snapshots.reserve_on_device(jnp.zeros(1), n) for n in (40, 50, 20, 10)]
        assert found == expected


def test_arrays_on_the_cpu_are_copied_on_their_device_only_on_request() -> None:
    array = jnp.zeros(3)
    assert not Snapshots("auto").reserve_on_device(array, 12)
    assert Snapshots("device").reserve_on_device(array, 12)


def test_arrays_in_host_memory_of_a_device_are_not_copied_there() -> None:
    kinds = [memory.kind for memory in DEVICE.addressable_memories()]
    if "pinned_host" not in kinds or DEVICE.default_memory().kind == "pinned_host":
        pytest.skip("this version of JAX has one kind of memory on the CPU")
    pinned = jax.sharding.SingleDeviceSharding(DEVICE, memory_kind="pinned_host")
    assert not Snapshots("device").reserve_on_device(jax.device_put(jnp.zeros(3), pinned), 12)


def test_a_copy_is_freed_when_all_of_it_is_written() -> None:
    array = jnp.arange(10)
    (copy,) = copies_of([lambda: device_copies.copy_on_device(array)])
    assert copy is not None
    assert copy.array.unsafe_buffer_pointer() != array.unsafe_buffer_pointer()
    copy.release(4)
    assert not copy.array.is_deleted()
    copy.release(6)
    assert copy.array.is_deleted()
    assert np.array_equal(array, np.arange(10))


def test_views_of_a_copy_outlive_it() -> None:
    (copy,) = copies_of([lambda: jnp.full(1 << 16, 3)])
    assert copy is not None
    view = np.asarray(copy.array)
    copy.release(copy.array.size)
    _ = [jnp.full(1 << 16, 9).block_until_ready() for _ in range(4)]
    assert (view == 3).all()


class _Late:
    """An array that turns out not to fit only when it is made."""

    size = 1

    def block_until_ready(self) -> Any:
        raise no_memory()


def no_memory() -> Exception:
    return jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes.")


def test_arrays_that_do_not_fit_after_all_are_not_copied() -> None:
    def fail() -> jax.Array:
        raise no_memory()

    def fail_late() -> Any:
        return _Late()

    found = copies_of([fail, lambda: jnp.ones(3), fail_late])
    assert [type(copy) for copy in found] == [type(None), DeviceCopy, type(None)]


# Transfers to the host


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat JAX arrays as if they were on an accelerator."""
    monkeypatch.setattr(transfer, "is_on_host", lambda data: not isinstance(data, jax.Array))


def pin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "has_pinned_memory", lambda _: True)


@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize("pinned", [False, True])
def test_transferred_data_outlive_their_array(
    pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pinned:
        pin(monkeypatch)
    array = jax.jit(lambda x: x + 1)(jnp.zeros(1 << 16))
    shards = shards_of(array)
    (copy,) = copy_to_host(shards, begin_transfers(shards), Snapshots())
    jax.block_until_ready(jax.jit(lambda x: x * 0 - 1, donate_argnums=0)(array))
    assert isinstance(copy.data, np.ndarray)
    assert (copy.data == 1).all()


@pytest.mark.usefixtures("remote")
def test_transfers_go_on_without_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pin(monkeypatch)
    monkeypatch.setattr(transfer, "PINNED", "no such memory")
    shards = shards_of(jnp.arange(5))
    (copy,) = copy_to_host(shards, begin_transfers(shards), Snapshots())
    assert np.asarray(copy.data).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("remote")
def test_data_are_sent_again_if_pinned_memory_was_short() -> None:
    class Lost:
        def __array__(self, *_: object, **__: object) -> Any:
            raise no_memory()

    shards = shards_of(jnp.arange(5))
    lost: Any = Lost()
    (copy,) = copy_to_host(shards, [lost], Snapshots())
    assert np.asarray(copy.data).tolist() == [0, 1, 2, 3, 4]
