"""Data of several processes continues on others, and quantized arrays are resharded among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import ProcessCountError
from orbit_ckpt.type_handlers import register_type_handler
from orbit_ckpt_dataloader import DataRestore, DataSave, ShardedLoader
from orbit_ckpt_quantized import QuantizedArray, QuantizedHandler, quantize
from tests.programs import Program
from tests.support import free_port

WEIGHTS = np.arange(96.0, dtype=np.float32).reshape(12, 8)
STEPS = 5


def loader() -> Any:
    return ShardedLoader(range(100), batch_size=12, seed=1)


def weights() -> Any:
    """Return quantized weights whose rows are on the devices of all processes."""
    sharding = jax.NamedSharding(jax.make_mesh((len(jax.devices()),), ("x",)), jax.P("x"))
    leaf = quantize(jnp.asarray(WEIGHTS))

    def place(value: Any) -> jax.Array:
        host = np.asarray(value)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return QuantizedArray(place(leaf.values), place(leaf.scales))


def save(directory: Path) -> None:
    data = loader()
    for _ in range(STEPS):
        next(data)
    items = {"data": DataSave(data), "params": ocp.args.StandardSave({"w": weights()})}
    with ocp.CheckpointManager(directory / "run") as manager:
        manager.save(1, args=ocp.args.Composite(**items))


def restore(directory: Path) -> None:
    data, target = loader(), {"w": weights()}
    wanted = {"data": DataRestore(data), "params": ocp.args.StandardRestore(target)}
    with ocp.CheckpointManager(directory / "run") as manager:
        found = manager.restore(1, args=ocp.args.Composite(**wanted))
        with pytest.raises(ProcessCountError, match="2 processes saved their states"):
            manager.restore(1, args=ocp.args.Composite(data=DataRestore()))
    for name in ("values", "scales"):
        array, expected = getattr(found["params"]["w"], name), getattr(target["w"], name)
        assert array.sharding == expected.sharding
        for ours, theirs in zip(array.addressable_shards, expected.addressable_shards, strict=True):
            assert (np.asarray(ours.data) == np.asarray(theirs.data)).all()
    share = " ".join(map(str, next(data)))
    (directory / f"share_{jax.process_index()}").write_text(share)


def main(index: int, count: int, port: int, scenario: str, directory: Path) -> None:
    """Save or restore as one of several processes."""
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    register_type_handler(QuantizedArray, QuantizedHandler())
    {"save": save, "restore": restore}[scenario](directory)
    jax.distributed.shutdown()
    print("done", flush=True)


def run(scenario: str, count: int, directory: Path) -> None:
    port = free_port()
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    programs = [
        Program(main, index, count, port, scenario, directory, environment=environment)
        for index in range(count)
    ]
    for process in [program.wait() for program in programs]:
        assert process.returncode == 0, process.stderr
        assert process.stdout.endswith("done\n"), process.stderr


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    run("save", 2, directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_what_two_processes_saved_continues_on_others(count: int, saved: Path) -> None:
    run("restore", count, saved)
    whole = loader()
    batches: Sequence[list[int]] = [next(whole) for _ in range(STEPS + 1)]
    shares = [(saved / f"share_{i}").read_text().split() for i in range(count)]
    assert [int(x) for share in shares for x in share] == batches[STEPS]
