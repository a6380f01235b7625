"""A checkpoint opens on any number of devices, in another process than the one that saved it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import run_script

PREAMBLE = """
import logging, sys, warnings
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import orbit_ckpt as ocp

warnings.simplefilter("error")
logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
path = sys.argv[1]
values = np.arange(128, dtype=np.float32).reshape(16, 8)
words = np.arange(16, dtype=np.uint32).reshape(8, 2)
count = len(jax.devices())
mesh = Mesh(np.array(jax.devices()).reshape(count // 2 or 1, min(count, 2)), ("x", "y"))

def sharding(*spec):
    return NamedSharding(mesh, P(*spec))

def make_tree():
    tree = {
        "sharded": jax.device_put(values, sharding("x", "y")),
        "partial": jax.device_put(values, sharding("y")),
        "replicated": jax.device_put(values, sharding()),
        "last device": jax.device_put(values, jax.devices()[-1]),
        "keys": jax.device_put(jax.random.wrap_key_data(words), sharding("x")),
    }
    return tree | {"numpy": values, "step": 7}

def check(loaded):
    keys = loaded.pop("keys")
    assert (np.asarray(jax.random.key_data(keys)) == words).all()
    assert loaded.pop("step") == 7
    assert type(loaded["numpy"]) is np.ndarray
    for name, array in loaded.items():
        assert array.dtype == np.float32 and (np.asarray(array) == values).all(), name
"""
SAVE = "ocp.save(path, make_tree())"
LOAD = """
loaded = ocp.load(path)
print(*sorted({device.id for leaf in jax.tree.leaves(loaded)
    if isinstance(leaf, jax.Array) for device in leaf.devices()}))
check(loaded)
"""
LOAD_WITH_TARGET = """
target = make_tree()
loaded = ocp.load(path, like=target)
for name, wanted in target.items():
    if isinstance(wanted, jax.Array):
        assert loaded[name].sharding == wanted.sharding, name
check(loaded)
"""
METADATA = """
tree = ocp.metadata(path).tree
assert tree["sharded"].shape == (16, 8)
print(tree["sharded"].sharding.shape, tree["sharded"].sharding.partition_spec)
"""


def run(script: str, path: Path, devices: int) -> list[str]:
    """Run a script in a new process with some devices; return the lines it printed."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    result = run_script(PREAMBLE + script, path, environment={"XLA_FLAGS": flags})
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Checkpoints of one tree by the number of devices they were saved on."""
    root = tmp_path_factory.mktemp("saved")
    paths = {devices: root / f"on_{devices}" for devices in (1, 8)}
    for devices, path in paths.items():
        run(SAVE, path, devices)
    return paths


@pytest.mark.slow
@pytest.mark.parametrize(("on", "to"), [(8, 1), (1, 8), (8, 4), (8, 8)])
def test_target_places_arrays_on_the_devices_that_are_there(
    on: int, to: int, saved: dict[int, Path]
) -> None:
    assert run(LOAD_WITH_TARGET, saved[on], to) == []


@pytest.mark.slow
def test_without_a_target_arrays_go_to_the_default_device_if_theirs_are_missing(
    saved: dict[int, Path],
) -> None:
    warning, devices = run(LOAD, saved[8], 1)
    assert "Recorded sharding cannot be used here" in warning
    assert "Give a target with shardings to choose" in warning
    assert devices == "0"


@pytest.mark.slow
def test_without_a_target_arrays_go_to_their_recorded_devices(saved: dict[int, Path]) -> None:
    assert run(LOAD, saved[8], 8) == ["0 1 2 3 4 5 6 7"]
    assert run(LOAD, saved[1], 8) == ["0"]


@pytest.mark.slow
def test_metadata_describes_shardings_whose_devices_are_missing(saved: dict[int, Path]) -> None:
    assert run(METADATA, saved[8], 1) == ["(4, 2) ('x', 'y')"]
