"""Training scripts that save into a store, which goes away, or that are killed."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import orbit_ckpt as ocp
from orbit_ckpt.testing.chaos import Chaos, Result, Run

pytest_plugins = ["orbit_ckpt.testing.chaos"]

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
import numpy as np
import orbit_ckpt as ocp

w = np.zeros(3)
options = ocp.CheckpointManagerOptions(max_to_keep=1)
with ocp.CheckpointManager(sys.argv[1], options=options) as run:
    latest = run.latest_step()
    if latest is not None:
        w = run.restore(latest)["w"]
    for step in range(0 if latest is None else latest + 1, 3):
        w = 2 * w + step
        run.save(step, {"w": w})
print(w.tolist())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def test_a_script_that_is_killed_at_a_request_resumes(chaos: Chaos, s3: str, script: Path) -> None:
    phases: set[str | None] = set()

    def train(directory: Path) -> Run:
        return chaos.run(script, f"{s3}/{directory.name}", directory=directory)

    def check(result: Result) -> None:
        assert result.run.stdout == result.undisturbed.stdout == "[4.0, 4.0, 4.0]\n"
        found = result.undisturbed.operations
        phases.update(o.phase for o in found)
        assert {o.kind for o in found} == {"put", "delete", "snapshot"}

    assert chaos.every_point(train, check, most=3) == 3
    assert {"snapshot", "write", "index", "manifest", "metadata", "retention"} <= phases


def test_a_request_that_only_seems_to_succeed_loses_an_object(
    chaos: Chaos, s3: str, script: Path, tmp_path: Path
) -> None:
    url = f"{s3}/{uuid.uuid4().hex}"
    lie = chaos.lie(1, kind="put", path="*/2/*/d/*")
    assert not chaos.run(script, url, directory=tmp_path, faults=[lie]).status
    assert not ocp.verify(f"{url}/2").is_intact


def test_a_store_that_goes_away_stops_a_script_and_comes_back(
    chaos: Chaos, s3: str, s3_server: str, script: Path, tmp_path: Path
) -> None:
    proxy = chaos.proxy(s3_server)
    undisturbed = chaos.run(script, f"{s3}/undisturbed", directory=tmp_path).check()
    count = len(proxy.requests)
    proxy.take_away(count // 2, failure="403")
    stopped = chaos.run(script, f"{s3}/run", directory=tmp_path)
    assert stopped.status == 1
    assert "StorageError" in stopped.stderr
    proxy.give_back()
    assert chaos.run(script, f"{s3}/run", directory=tmp_path).stdout == undisturbed.stdout


def test_a_store_that_goes_away_for_two_requests_stops_nothing(
    chaos: Chaos, s3: str, s3_server: str, script: Path, tmp_path: Path
) -> None:
    proxy = chaos.proxy(s3_server)
    proxy.take_away(10, 11)
    chaos.run(script, f"{s3}/run", directory=tmp_path).check()
    assert len(proxy.requests) > 11


def test_requests_to_a_store_of_a_plug_in_count_too(chaos: Chaos, tmp_path: Path) -> None:
    script = tmp_path / "save.py"
    script.write_text("""
import numpy as np
import orbit_ckpt as ocp
from orbit_ckpt.stores import register_store
from orbit_ckpt.testing.fakes import MemoryClient

register_store("cloud", MemoryClient)
ocp.save("cloud://bucket/1", {"w": np.ones(3)})
""")
    for fault in (chaos.kill(3, kind="put"), chaos.lie(3, kind="put")):
        found = chaos.run(script, directory=tmp_path, faults=[fault])
        assert found.was_killed == (fault.action == "kill"), found.describe()
        (operation,) = found.faults
        assert operation.path.startswith("cloud://bucket/1/")


LARGE = """
import sys
import numpy as np
import orbit_ckpt as ocp
from orbit_ckpt._src.storage import client_bucket

client_bucket.PART_BYTES = 5 << 20
ocp.save(sys.argv[1], {"w": np.frombuffer(np.random.default_rng(0).bytes(11_000_000), np.uint8)})
"""


def test_an_object_sent_in_parts_is_one_operation(chaos: Chaos, s3: str, tmp_path: Path) -> None:
    file = tmp_path / "save.py"
    file.write_text(LARGE)
    run = chaos.run(file, f"{s3}/1", directory=tmp_path)
    assert max(operation.nbytes or 0 for operation in run.operations) > 10_000_000
