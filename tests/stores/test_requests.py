"""How many requests an operation sends, and how many wait for one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from benchmarks.store_server import make_bucket
from orbit_ckpt._src.storage import client_bucket, pace
from orbit_ckpt._src.storage.pace import Pace
from orbit_ckpt._src.storage.s3_client import S3Client
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt.errors import StorageError
from orbit_ckpt.testing.chaos.proxy import Failure, Link, Proxy

TREE = {f"leaf{i}": np.full(2000, i) for i in range(30)}
LARGE = np.frombuffer(np.random.default_rng(0).bytes(11_000_000), np.uint8)

SLOW = Link(latency_s=0.1)
"""So slow that requests which begin together are seen to do so."""


def sent(proxy: Proxy, act: Callable[[], object]) -> tuple[int, int]:
    """Return the number of requests of a call, and of rounds of them."""
    proxy.clear()
    proxy.link = SLOW
    try:
        act()
    finally:
        proxy.link = Link()
    return len(proxy.requests), proxy.rounds


def test_metadata_takes_three_rounds(s3: str, proxy: Proxy) -> None:
    ocp.save(f"{s3}/run/1", TREE)
    count, rounds = sent(proxy, lambda: ocp.metadata(f"{s3}/run/1"))
    # two listings, three documents, the index, and whether nothing has changed meanwhile
    assert (count, rounds) == (7, 3), proxy.requests


def test_metadata_of_a_step_with_items_takes_three_rounds(s3: str, proxy: Proxy) -> None:
    with ocp.CheckpointManager(f"{s3}/run") as run:
        run.save(1, TREE)
    count, rounds = sent(proxy, lambda: ocp.metadata(f"{s3}/run/1"))
    assert (count, rounds) == (8, 3), proxy.requests


def test_the_latest_step_is_one_round(s3: str, proxy: Proxy) -> None:
    for step in range(3):
        ocp.save(f"{s3}/run/{step}", {"a": 1})
    found: list[int | None] = []
    count, rounds = sent(proxy, lambda: found.append(ocp.latest_step(f"{s3}/run")))
    assert found == [2]
    assert (count, rounds) == (2, 1), proxy.requests


def test_a_load_adds_one_round_for_the_data(s3: str, proxy: Proxy) -> None:
    ocp.save(f"{s3}/run/1", TREE)
    count, rounds = sent(proxy, lambda: ocp.load(f"{s3}/run/1"))
    assert (count, rounds) == (8, 4), proxy.requests
    count, rounds = sent(proxy, lambda: ocp.load(f"{s3}/run"))
    assert (count, rounds) == (9, 4), proxy.requests


@pytest.mark.parametrize("nbytes", [10_000, 300_000])
def test_leaves_that_lie_together_are_read_by_one_request_each_once(
    s3: str, proxy: Proxy, nbytes: int
) -> None:
    values = np.random.default_rng(0).integers(0, 256, (12_000_000 // nbytes, nbytes), np.uint8)
    ocp.save(f"{s3}/run/1", {f"leaf{i}": row for i, row in enumerate(values)})
    found: dict[str, Any] = {}
    count, rounds = sent(proxy, lambda: found.update(ocp.load(f"{s3}/run/1")))
    assert all(np.array_equal(found[f"leaf{i}"], row) for i, row in enumerate(values))
    assert count <= 7 + 16, proxy.requests
    assert rounds == 4, proxy.requests
    assert proxy.nbytes < 1.1 * values.nbytes  # with the index and documents
    proxy.clear()
    ocp.verify(f"{s3}/run/1")
    assert proxy.nbytes < 1.2 * values.nbytes


def test_chunks_that_are_objects_are_verified_side_by_side(s3: str, proxy: Proxy) -> None:
    tree = {f"leaf{i}": np.full(2000, i) for i in range(64)}
    ocp.Checkpointer(ocp.PyTreeHandler(use_ocdbt=False)).save(f"{s3}/run/1", tree)
    count, rounds = sent(proxy, lambda: ocp.verify(f"{s3}/run/1"))
    assert count > 64, proxy.requests
    assert rounds < count / 4, (count, rounds)


def test_the_end_of_a_chunk_has_no_request_of_its_own(s3: str, proxy: Proxy) -> None:
    large = np.random.default_rng(0).integers(0, 256, 1 << 23, np.uint8)
    for compressed in (False, True):  # with its checksum, and in a frame that is slightly larger
        step = f"{s3}/run/{compressed}"
        handler = ocp.PyTreeHandler(use_compression=compressed)
        ocp.Checkpointer(handler).save(step, {"a": large})
        count, _ = sent(proxy, lambda step=step: ocp.load(step))
        assert count == 8, proxy.requests


def test_a_lazy_array_reads_its_own_bytes(s3: str, proxy: Proxy) -> None:
    values = np.random.default_rng(0).integers(0, 256, (40, 100_000), np.uint8)
    ocp.save(f"{s3}/run/1", {f"leaf{i}": row for i, row in enumerate(values)})
    found = ocp.load(f"{s3}/run/1", lazy=True)
    proxy.clear()
    np.testing.assert_array_equal(found["leaf7"].get(), values[7])
    assert len(proxy.requests) == 2, proxy.requests  # and whether it is still the same checkpoint
    assert proxy.nbytes < 1.1 * values[7].nbytes


@pytest.mark.parametrize("max_bytes", [1 << 30, 400_000])
def test_a_conversion_reads_small_leaves_together(
    s3: str, proxy: Proxy, tmp_path: Path, max_bytes: int
) -> None:
    values = np.random.default_rng(0).integers(0, 256, (100, 20_000), np.uint8)
    tree = {f"leaf{i}": row for i, row in enumerate(values)}
    ocp.save(f"{s3}/run/1", {**tree, "tied": tree["leaf0"]})
    proxy.clear()
    ocp.convert(f"{s3}/run/1", tmp_path / "x.safetensors", to="safetensors", max_bytes=max_bytes)
    found = ocp.load(tmp_path / "x.safetensors")
    assert all(np.array_equal(found[f"leaf{i}"], row) for i, row in enumerate(values))
    assert np.array_equal(found["tied"], values[0])
    assert len(proxy.requests) < (25 if max_bytes > values.nbytes else 75), proxy.requests
    assert proxy.nbytes < 1.2 * values.nbytes


def test_a_conversion_names_the_damaged_one_of_small_leaves(s3: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (10, 20_000), np.uint8)
    ocp.save(f"{s3}/run/1", {f"leaf{i}": row for i, row in enumerate(values)})
    file = next(iter((StorePath(f"{s3}/run/1") / "d").iterdir()))
    data = bytearray(file.read_bytes())
    data[data.index(values[6].tobytes()) + 100] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ocp.errors.CorruptionError, match="leaf6"):
        ocp.convert(f"{s3}/run/1", tmp_path / "x.safetensors", to="safetensors")
    assert not list(tmp_path.iterdir())


def test_a_manager_restores_with_few_requests(s3: str, proxy: Proxy) -> None:
    with ocp.CheckpointManager(f"{s3}/run") as run:
        run.save(1, TREE)
        run.wait_until_finished()
        count, rounds = sent(proxy, lambda: run.restore(1))
    assert count <= 13, proxy.requests
    assert rounds <= 6, proxy.requests


def test_a_save_reads_back_little(s3: str, proxy: Proxy) -> None:
    count, rounds = sent(proxy, lambda: ocp.save(f"{s3}/run/1", TREE))
    assert (count, rounds) == (13, 9), proxy.requests


def test_no_document_is_asked_for_twice(s3: str, proxy: Proxy) -> None:
    with ocp.CheckpointManager(f"{s3}/run") as run:
        run.save(1, TREE)
    sent(proxy, lambda: ocp.load(f"{s3}/run"))
    asked = [path for method, path in proxy.requests if method == "GET" and "/d/" not in path]
    assert len(asked) == len(set(asked)), asked


def test_a_large_run_is_listed_by_its_steps(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(3):
        ocp.save(f"{s3}/run/{step}", {"a": 1})
    list_page = client_bucket.ClientBucket.list_page

    def truncated(bucket: client_bucket.ClientBucket, *given: str) -> object:
        found = list_page(bucket, *given)
        return found and (found[0][:1], False)

    monkeypatch.setattr(client_bucket.ClientBucket, "list_page", truncated)
    proxy.clear()
    assert ocp.latest_step(f"{s3}/run") == 2
    assert ocp.load(f"{s3}/run") == {"a": 1}
    assert any("delimiter" in path for _, path in proxy.requests)


def test_a_large_object_is_sent_in_parts(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_bucket, "PART_BYTES", 5 << 20)
    ocp.save(f"{s3}/parts/1", {"a": LARGE})
    sizes = [one.sent_bytes for one in proxy.passed if "partNumber" in one.path]
    assert len(sizes) == 3
    assert sizes.count(5 << 20) == 2
    assert sum("uploads" in one.path for one in proxy.passed) == 1
    np.testing.assert_array_equal(ocp.load(f"{s3}/parts/1")["a"], LARGE)
    assert ocp.verify(f"{s3}/parts/1")


@pytest.mark.parametrize("failure", ["503", "403"])
def test_a_failed_save_leaves_no_parts(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, failure: Failure
) -> None:
    monkeypatch.setattr(client_bucket, "PART_BYTES", 5 << 20)
    proxy.fails = lambda _, path, __: failure if "partNumber=3" in path else None
    with pytest.raises(StorageError, match=r"overloaded|credentials"):
        ocp.save(f"{s3}/parts/1", {"a": LARGE})
    proxy.fails = lambda *_: None
    bucket = StorePath(f"{s3}/parts").own_bucket()
    assert isinstance(bucket, client_bucket.ClientBucket)
    assert isinstance(bucket._client, S3Client)
    assert bucket._client.uploads_below("") == []


def test_the_store_can_check_every_object(s3: str, proxy: Proxy) -> None:
    ocp.save(f"{s3}/run/1", TREE)
    written = [one for one in proxy.passed if one.method == "PUT"]
    assert len(written) > 5
    assert all(one.headers["x-amz-checksum-crc32c"] for one in written)


def test_requests_pause_together_when_the_store_is_overloaded() -> None:
    now = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    shared = Pace(lambda: now[0], sleep)
    shared.wait()
    assert slept == []
    shared.slow_down()
    shared.slow_down()  # of a request that was on its way
    shared.wait()
    assert pace.FIRST_PAUSE_S <= sum(slept) <= 1.25 * pace.FIRST_PAUSE_S
    slept.clear()
    shared.slow_down()
    shared.wait()
    assert sum(slept) >= 2 * pace.FIRST_PAUSE_S
    for _ in range(3):
        shared.answered(0.1)
    slept.clear()
    shared.slow_down()
    shared.wait()
    assert sum(slept) <= 1.25 * pace.FIRST_PAUSE_S


def test_patience_follows_the_answers() -> None:
    shared = Pace()
    assert shared.patience_s() == pace.FIRST_PATIENCE_S
    for _ in range(20):
        shared.answered(0.05)
    assert shared.patience_s() == pace.MIN_PATIENCE_S
    for _ in range(20):
        shared.answered(1.5)
    assert shared.patience_s() == 6.0
    assert shared.patience_s(8 << 20) == pace.MAX_PATIENCE_S  # nothing is known of bodies
    for _ in range(20):
        shared.answered(2.0, 8 << 20)
    assert 13 < shared.patience_s(8 << 20) < 15
    for _ in range(200):
        shared.answered(30.0)
    assert shared.patience_s() == pace.MAX_PATIENCE_S


def test_a_request_without_an_answer_is_sent_again(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ocp.save(f"{s3}/run/1", TREE)
    monkeypatch.setattr(pace, "MIN_PATIENCE_S", 0.2)
    monkeypatch.setattr(pace, "FIRST_PATIENCE_S", 0.2)
    seen: set[str] = set()

    def fails(_: str, path: str, __: int) -> Failure | None:
        is_first = path not in seen
        seen.add(path)
        return "silence" if is_first else None

    proxy.fails = fails
    loaded = ocp.load(f"{s3}/run/1")
    assert {name: value.tolist() for name, value in loaded.items()} == {
        name: value.tolist() for name, value in TREE.items()
    }


def test_the_next_bucket_reads_no_description_of_s3_again(
    s3: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ocp.save(f"{s3}/1", {"n": 1})

    def refuse(_: object, path: str, *__: object) -> None:
        pytest.fail(f"{path} is read again")

    monkeypatch.setattr("botocore.loaders.JSONFileLoader.load_file", refuse)
    other = f"s3://{make_bucket(s3_server)}/1"
    ocp.save(other, {"n": 2})
    assert ocp.load(other) == {"n": 2}


def test_descriptions_of_s3_are_found_where_aws_settings_say(
    s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    description = tmp_path / "s3/2099-01-01/service-2.json"
    description.parent.mkdir(parents=True)
    description.write_text("{}")
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    with pytest.raises(StorageError, match="MissingServiceIdError"):
        ocp.save(f"{s3}/1", {"n": 1})
