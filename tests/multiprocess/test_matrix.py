"""One, two and four processes save; one, two and four load what each of them has saved."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.integrity import CheckedDirectory, read_manifest
from orbit_ckpt._src.storage.kvstore import open_store
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt.errors import CorruptionError
from tests.multiprocess import matrix
from tests.multiprocess.matrix import COUNTS, DEVICES, LAYOUTS, ORBAX_LAYOUTS, OTHERS, host
from tests.programs import Program, wait_for_all
from tests.support import free_port

GROUPS = [("ours", count, DEVICES[count]) for count in COUNTS] + [("orbax", 2, [2, 2])]
SEVERAL = tuple(count for count in COUNTS if count > 1)
Reports = dict[tuple[int, int], dict[str, Any]]


def start(directory: Path, scenario: str, devices: list[int]) -> list[Program]:
    """Start a group of processes."""
    port = free_port()
    return [
        Program(
            matrix.main,
            *(index, len(devices), count, port, scenario, directory),
            environment={"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"},
        )
        for index, count in enumerate(devices)
    ]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which all groups of processes have saved and loaded."""
    directory = tmp_path_factory.mktemp("matrix")
    programs = [
        program for name, _, devices in GROUPS for program in start(directory, name, devices)
    ]
    failed = [ended for ended in wait_for_all(programs) if ended.returncode]
    assert not failed, "\n".join(f"{ended.returncode}: {ended.stderr[-3000:]}" for ended in failed)
    return directory


@pytest.fixture(scope="module")
def reports(directory: Path) -> Reports:
    return {
        (count, index): json.loads((directory / f"report_ours_{count}_{index}.json").read_text())
        for count in COUNTS
        for index in range(count)
    }


def chunks(path: Path, name: str) -> list[list[tuple[int, ...]]]:
    """Return the grid indices of the chunks of an array that each process has in its database."""
    count = len([p for p in path.iterdir() if p.name.startswith("ocdbt.process_")])
    prefix = f"arrays.{name}/c"
    found: list[list[tuple[int, ...]]] = []
    for index in range(count):
        keys = read_index(path / f"ocdbt.process_{index}")
        grid = [k[len(prefix) + 1 :] for k in keys if k == prefix or k.startswith(f"{prefix}/")]
        found.append([tuple(map(int, filter(None, key.split("/")))) for key in grid])
    return found


def chunk_shape(path: Path, name: str) -> tuple[int, ...]:
    metadata: Any = ocp.metadata(path)
    return metadata["arrays"][name].storage.chunk_shape


def bytes_of_each(path: Path, name: str) -> list[int]:
    """Return how many bytes of an array each process has written, without what is added to them."""
    size = math.prod(chunk_shape(path, name)) * host(name).itemsize
    return [len(keys) * size for keys in chunks(path, name)]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("saved", COUNTS)
@pytest.mark.parametrize("loaded", COUNTS)
def test_arrays_come_back_bit_for_bit_on_any_number_of_processes(
    reports: Reports, layout: str, saved: int, loaded: int
) -> None:
    for index in range(loaded):  # where the comparison has failed there is no report
        assert f"{layout}_{saved}" in reports[loaded, index]["loaded"]


@pytest.mark.slow
@pytest.mark.parametrize("saved", COUNTS)
@pytest.mark.parametrize("loaded", SEVERAL)
def test_each_process_reads_only_what_its_shards_need(
    reports: Reports, saved: int, loaded: int
) -> None:
    others = 100  # the numpy array and the number, which all processes read
    everything = reports[1, 0]["read"][f"sharded_{saved}"]
    read = [reports[loaded, index]["read"][f"sharded_{saved}"] for index in range(loaded)]
    assert max(read) < everything / loaded + others
    assert sum(read) >= everything


@pytest.mark.slow
@pytest.mark.interop
def test_processes_load_what_two_of_orbax_have_saved(reports: Reports) -> None:
    for report in reports.values():
        assert {f"orbax_{layout}" for layout in ORBAX_LAYOUTS} <= set(report["loaded"])


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", SEVERAL)
def test_orbax_restores_what_several_processes_have_saved(
    directory: Path, layout: str, count: int
) -> None:
    import orbax.checkpoint as orbax  # noqa: PLC0415 - takes seconds

    path = directory / f"{layout}_{count}"
    with orbax.PyTreeCheckpointer() as checkpointer:
        metadata = checkpointer.metadata(path).item_metadata.tree
        args = orbax.checkpoint_utils.construct_restore_args(metadata)
        args["arrays"] = {
            name: orbax.RestoreArgs(restore_type=np.ndarray) for name in LAYOUTS[layout]
        }
        restored = checkpointer.restore(path, restore_args=args)
    for name in LAYOUTS[layout]:
        assert restored["arrays"][name].tobytes() == host(name).tobytes(), name
    for name, value in OTHERS.items():
        np.testing.assert_equal(restored[name], value)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", SEVERAL)
def test_every_byte_is_written_by_one_process(directory: Path, layout: str, count: int) -> None:
    path = directory / f"{layout}_{count}"
    for name in LAYOUTS[layout]:
        found = Counter(index for keys in chunks(path, name) for index in keys)
        assert set(found.values()) == {1}, name
        assert sum(bytes_of_each(path, name)) == host(name).nbytes, name


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", SEVERAL)
def test_the_data_of_every_process_is_recorded(directory: Path, layout: str, count: int) -> None:
    path = directory / f"{layout}_{count}"
    manifest = read_manifest(path)
    assert manifest is not None
    if (path / "manifest.ocdbt").exists():
        data = {str(file.relative_to(path)) for file in path.glob("**/d/*")}
        assert manifest.database is not None
        assert data == {*manifest.database.files, *manifest.files} & data
    assert not list(path.glob("ocdbt.process_*/orbit_part_index"))
    report = ocp.verify(path)
    assert report.is_intact
    assert not report.unchecked


@pytest.mark.slow
@pytest.mark.parametrize("count", SEVERAL)
def test_replicas_are_written_in_equal_pieces(directory: Path, count: int) -> None:
    path = directory / f"replicated_{count}"
    for name in ("matrix", "tall"):
        nbytes = host(name).nbytes
        assert bytes_of_each(path, name) == [nbytes // min(count, nbytes // 4096)] * count
    small = bytes_of_each(path, "bits")  # less than 4096 bytes
    assert sorted(small) == [0] * (count - 1) + [host("bits").nbytes]
    mixed = directory / f"mixed_{count}"
    assert bytes_of_each(mixed, "matrix") == [host("matrix").nbytes // count] * count
    uneven = bytes_of_each(directory / f"uneven_{count}", "half")
    assert uneven == [host("half").nbytes // (2 if count == 2 else 3)] * min(count, 3) + (
        [0] if count == 4 else []
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", SEVERAL)
def test_options_say_who_writes_replicas(directory: Path, count: int) -> None:
    nbytes = host("matrix").nbytes

    def written(option: str) -> list[int]:
        return bytes_of_each(directory / f"option_{option}_{count}", "matrix")

    assert written("off") == [nbytes] + [0] * (count - 1)
    assert written("large") == [nbytes] + [0] * (count - 1)
    assert sorted(written("few"), reverse=True) == [nbytes // 2] * 2 + [0] * (count - 2)


def stored_bytes(path: Path, layout: str) -> int:
    """Return the size of the chunks of all arrays of a layout."""
    store = open_store(CheckedDirectory(path))
    keys = [key for name in LAYOUTS[layout] for key in store.keys_below(f"arrays.{name}")]
    return sum(store.length(key) or 0 for key in keys if "/c" in key)


@pytest.mark.slow
@pytest.mark.parametrize("count", SEVERAL)
def test_one_replica_reads_and_sends_to_the_others(
    directory: Path, reports: Reports, count: int
) -> None:
    stored = stored_bytes(directory / f"replicated_{count}", "replicated")
    others = 100  # the numpy array and the number, which all processes read
    for replica in (0, 1):
        read = [reports[count, i]["broadcast"][f"replicated_0_{replica}"] for i in range(count)]
        senders = [nbytes for nbytes in read if nbytes > others]
        assert len(senders) == count // 2  # the devices of one of two replicas
        assert all(stored <= nbytes < stored + others for nbytes in senders)
    # partitioned over the axis: every process reads its own part, and nothing else
    read = [reports[count, i]["broadcast"]["sharded_0_0"] for i in range(count)]
    assert min(read) > others
    assert sum(read) < stored_bytes(directory / f"sharded_{count}", "sharded") + count * others


@pytest.mark.slow
def test_some_of_all_processes_save_while_others_save(directory: Path, reports: Reports) -> None:
    assert [reports[4, index]["pair"] for index in range(4)] == [[0, 2], [1, 3]] * 2
    for first in (0, 1):
        path = directory / f"pair_{first}"
        assert bytes_of_each(path, "matrix") == [host("matrix").nbytes // 2] * 2
        found = ocp.load(path)
        assert found["primary"] == first + 2
        assert np.asarray(found["arrays"]["matrix"]).tobytes() == host("matrix").tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("count", SEVERAL)
@pytest.mark.parametrize("share_reads", [False, True])
def test_failure_of_a_process_that_reads_for_others_is_raised_on_all(
    reports: Reports, count: int, share_reads: bool
) -> None:
    found = [reports[count, index][f"failure_{share_reads}"] for index in range(count)]
    assert found[0] == ["StorageError", "the disk is on fire"]
    for kind, text in found[1:]:
        assert kind == "ProcessFailedError"
        assert text.startswith("process 0, which reads parts of arrays for the others, could not")


@pytest.mark.slow
@pytest.mark.parametrize("count", SEVERAL)
@pytest.mark.parametrize("saved", COUNTS)
@pytest.mark.parametrize("layout", ["replicated", "mixed"])
def test_shared_reads_read_every_byte_once(
    directory: Path, reports: Reports, layout: str, saved: int, count: int
) -> None:
    stored = stored_bytes(directory / f"{layout}_{saved}", layout)
    read = [reports[count, index]["shared"][f"{layout}_{saved}"] for index in range(count)]
    others = 100  # the numpy array and the number, which all processes read
    assert stored <= sum(read) <= stored + count * others
    assert max(read) - min(read) < stored / 2  # about equally


@pytest.mark.slow
@pytest.mark.parametrize("count", SEVERAL)
def test_a_manager_shares_reads_of_large_parts(
    directory: Path, reports: Reports, count: int
) -> None:
    stored = stored_bytes(directory / f"managed_{count}" / "0" / "default", "replicated")
    others = 100  # the numpy array and the number, which all processes read
    for least, total in ((1, stored), (1 << 16, count * stored)):
        read = sum(reports[count, i]["managed"][str(least)] for i in range(count))
        assert total <= read <= total + count * others


@pytest.mark.slow
@pytest.mark.parametrize("count", SEVERAL)
@pytest.mark.parametrize("use_ocdbt", [True, False])
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("dtype", ["odd.dtype: ", "{most} with float32[8, 8]", "{last} with float16[8, 8]"]),
        ("shape", ["odd.shape: ", "{most} with float32[8, 8]", "{last} with float32[16, 8]"]),
        ("chunks", ["odd.chunks: ", "{most} with", "chunks of [4, 8]", "chunks of [8, 4]"]),
        ("missing", ["odd.missing: ", "{most} without it; {last} with float32[8, 8]"]),
    ],
)
def test_processes_that_save_different_arrays_are_named(
    reports: Reports, count: int, use_ocdbt: bool, case: str, expected: list[str]
) -> None:
    most = "process 0" if count == 2 else f"processes 0-{count - 2}"
    for index in range(count):
        text = reports[count, index]["disagreed"][f"{case}_{use_ocdbt}"]
        if use_ocdbt or "written twice" not in text:
            for part in expected:
                assert part.format(most=most, last=f"process {count - 1}") in text
        assert "odd." in text
        assert "do not save the same tree" in text


@pytest.mark.slow
@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_shardings_that_leave_a_part_to_nobody_are_refused(
    reports: Reports, use_ocdbt: bool
) -> None:
    for index in range(2):
        text = reports[2, index]["disagreed"][f"order_{use_ocdbt}"]
        assert "odd.order/" in text
        assert "do not save the same tree, or not in the same shardings" in text


@pytest.mark.slow
def test_damaged_records_of_arrays_are_not_believed(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(directory / "sharded_2", path)
    record = path / "array_metadatas" / "process_0"
    record.write_bytes(record.read_bytes().replace(b"threefry2x32", b"threefry2x33"))
    with pytest.raises(CorruptionError, match="process_0"):
        ocp.load(path)
