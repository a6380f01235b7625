"""Functions of processes, in two of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit_ckpt import multihost
from tests.multiprocess import multihost_worker
from tests.programs import Program
from tests.support import free_port


def run(scenario: str, directory: Path) -> None:
    port = free_port()
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    programs = [
        Program(multihost_worker.main, index, port, scenario, directory, environment=environment)
        for index in range(2)
    ]
    for program in programs:
        process = program.wait()
        assert process.stdout.endswith("done\n"), process.stderr


@pytest.mark.slow
@pytest.mark.interop
def test_two_processes_are_described_as_by_orbax(tmp_path: Path) -> None:
    run("compare_with_orbax", tmp_path)


@pytest.mark.slow
def test_two_processes_wait_for_each_other(tmp_path: Path) -> None:
    run("wait", tmp_path)


def test_process_that_is_alone_waits_for_no_other() -> None:
    multihost.sync_global_processes("name")
    multihost.get_barrier_sync_fn()(key="name", timeout_ms=1)
    assert multihost.should_skip_process_sync({0, 1})
    assert multihost.broadcast_one_to_all({"a": 1}) == {"a": 1}
    assert multihost.global_max([3, -2]) == [3, -2]
    assert multihost.global_max([]) == []
    assert multihost.reached_preemption(1) is False
    assert not multihost.is_pathways_backend()
    assert not multihost.is_jax_distributed_client_initialized()
    with pytest.raises(ValueError, match=r"call jax\.distributed\.initialize"):
        multihost.get_jax_distributed_client()


def test_number_that_is_too_large_for_a_maximum_is_refused() -> None:
    with pytest.raises(OverflowError):
        multihost.global_max([2**40])


@pytest.mark.parametrize(
    ("options", "key"),
    [({}, "k"), ({"prefix": "p"}, "p_k"), ({"prefix": "p", "suffix": "s"}, "p_k.s")],
)
def test_barrier_has_a_prefix_and_a_suffix(options: dict[str, str], key: str) -> None:
    assert multihost.unique_barrier_key("k", **options) == key
