"""Two processes of one program save and load together."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

import orbit_ckpt as ocp
from tests.incremental.test_incremental import new_bytes
from tests.multiprocess import worker
from tests.multiprocess.trees import OTHERS, SPECS, check_tree, host_values, make_tree
from tests.programs import Program
from tests.support import free_port


def run(scenario: str, directory: Path | str) -> list[subprocess.CompletedProcess[str]]:
    """Run a scenario of `worker.py` in two processes with two devices each."""
    port = free_port()
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    programs = [
        Program(worker.main, index, 2, port, scenario, str(directory), environment=environment)
        for index in range(2)
    ]
    return [program.wait() for program in programs]


def assert_done(process: subprocess.CompletedProcess[str]) -> None:
    assert process.returncode == 0, process.stderr
    assert process.stdout.endswith("done\n"), process.stderr  # after what Gloo says


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exchanged")
    ocp.save(directory / "by_one", make_tree())
    for process in run("exchange", directory):
        assert_done(process)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Checkpointer", "AsyncCheckpointer"])
@pytest.mark.parametrize("handler", ["SaveOverride", "AsyncOverride"])
def test_two_processes_save_through_overrides_of_a_handler(
    handler: str, kind: str, exchanged: Path
) -> None:
    path = exchanged / f"{handler}{kind}"
    check_tree(ocp.load(path))
    assert ocp.verify(path).is_intact
    assert (path / "by.txt").read_text() == "0"


@pytest.mark.slow
def test_two_processes_save_into_databases_of_several_names(exchanged: Path) -> None:
    path = exchanged / "by_two_options"
    names = {entry.name for entry in path.iterdir() if entry.name.startswith("ocdbt.")}
    ids = ("0", "1", "host", "replica_0", "replica_1")
    assert names == {f"ocdbt.process_{name}" for name in ids}
    check_tree(ocp.load(path))
    assert ocp.verify(path).is_intact


@pytest.mark.slow
def test_two_processes_save_what_one_loads(exchanged: Path) -> None:
    check_tree(ocp.load(exchanged / "by_two"))
    check_tree(ocp.load(exchanged / "by_two_again"))


@pytest.mark.slow
def test_every_process_writes_a_database_and_every_chunk_is_written_once(exchanged: Path) -> None:
    path = exchanged / "by_two"
    sizes = [
        sum(file.stat().st_size for file in (path / f"ocdbt.process_{i}" / "d").iterdir())
        for i in range(2)
    ]
    assert abs(sizes[0] - sizes[1]) < 2000
    assert sum(sizes) < 64 * 64 * 4 + 4000
    assert (path / "d").is_dir()
    assert sorted(p.name for p in (path / "array_metadatas").iterdir()) == [
        "process_0",
        "process_1",
    ]


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize("name", ["by_two", "by_two_True_False", "by_two_False_False"])
def test_orbax_restores_what_two_processes_saved(exchanged: Path, name: str) -> None:
    assert_orbax_restores(exchanged / name)


def assert_orbax_restores(path: Path) -> None:
    import orbax.checkpoint as orbax  # noqa: PLC0415 - takes seconds

    with orbax.PyTreeCheckpointer() as checkpointer:
        metadata = checkpointer.metadata(path).item_metadata.tree
        args = orbax.checkpoint_utils.construct_restore_args(metadata)
        as_numpy = {n: orbax.RestoreArgs(restore_type=np.ndarray) for n in SPECS}
        args = {**args, "arrays": as_numpy, "keys": orbax.RestoreArgs(restore_type=np.ndarray)}
        restored = checkpointer.restore(path, restore_args=args)
    for leaf, value in host_values().items():
        assert restored["arrays"][leaf].tobytes() == value.tobytes()
    for leaf, value in OTHERS.items():
        np.testing.assert_equal(restored[leaf], value)


@pytest.mark.slow
def test_failure_of_one_process_is_one_of_all(tmp_path: Path) -> None:
    for process in run("failures", tmp_path):
        assert_done(process)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier", "failed_1"]


@pytest.mark.slow
def test_a_process_that_cannot_read_metadata_keeps_nobody_waiting(tmp_path: Path) -> None:
    for process in run("unreadable", tmp_path):
        assert_done(process)


@pytest.mark.slow
def test_killed_process_is_named_and_its_step_never_listed(tmp_path: Path) -> None:
    survivor, victim = run("killed", tmp_path)
    assert victim.returncode == -signal.SIGKILL
    assert_done(survivor)


@pytest.mark.slow
@pytest.mark.interop
def test_ranges_of_keys_are_merged_by_another_process_or_not_at_all(tmp_path: Path) -> None:
    survivor, victim = run("merging", tmp_path)
    assert victim.returncode == -signal.SIGKILL
    assert_done(survivor)
    path = tmp_path / "merged"
    check_tree(ocp.load(path))
    assert ocp.verify(path).is_intact
    assert not [*path.glob("orbit_merged_range_*"), *path.glob("*/orbit_part_index")]
    store = ts.KvStore.open({"driver": "file", "path": f"{path}/"}).result()
    root = ts.ocdbt.dump(store, None).result()["versions"][-1]["root"]["location"]
    assert len(ts.ocdbt.dump(store, root).result()["entries"]) > 2  # a node for every range
    assert_orbax_restores(path)


@pytest.mark.slow
def test_any_process_may_be_primary_or_save_alone(tmp_path: Path) -> None:
    for process in run("hosts", tmp_path):
        assert_done(process)
    assert ocp.load(tmp_path / "by_one_of_two")["index"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "by_one_of_two",
        "by_second",
        "local_0",
        "local_1",
    ]


@pytest.mark.slow
def test_several_processes_save_incrementally(tmp_path: Path) -> None:
    ocp.save(tmp_path / "by_one", make_tree())
    for process in run("incremental", tmp_path):
        assert_done(process)
    assert not (tmp_path / "refused").exists()
    full = new_bytes(tmp_path / "0")
    assert new_bytes(tmp_path / "1", tmp_path / "0") < full / 2
    shutil.rmtree(tmp_path / "0")
    shutil.rmtree(tmp_path / "1")
    for path in [tmp_path / "2", *(tmp_path / "run").glob("[0-9]")]:
        assert ocp.verify(path).is_intact
        assert len([*path.rglob("orbit_digests")]) == 1  # none is left of a process
    check_tree({**ocp.load(tmp_path / "2"), "step": 7})
    handle = ocp.save_async(tmp_path / "3", ocp.load(tmp_path / "2"), base=tmp_path / "2")
    handle.result()
    check_tree({**ocp.load(tmp_path / "3"), "step": 7})
