"""One of two processes, which asks both libraries the same and prints `done` if they agree."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orbit_ckpt import multihost, utils
from orbit_ckpt.errors import ProcessTimeoutError


def compare_with_orbax(directory: Path) -> None:
    """Call the functions of both libraries that tell or do the same."""
    from orbax.checkpoint import utils as orbax_utils  # noqa: PLC0415 - takes seconds
    from orbax.checkpoint._src.multihost import multihost as orbax  # noqa: PLC0415 - as above

    del directory
    index = jax.process_index()
    tree = {"a": np.asarray([index, 2]), "b": [index + 5.5]}

    def compare(name: str, *args: Any, **kwargs: Any) -> None:
        ours, theirs = (getattr(module, name)(*args, **kwargs) for module in (multihost, orbax))
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
        assert type(ours) is type(theirs), name

    for name in (
        *("process_index", "process_count", "coordination_timeout", "should_skip_process_sync"),
        *("is_jax_distributed_client_initialized", "is_pathways_backend"),
        *("is_native_pathways_backend", "is_proxy_pathways_backend"),
        "is_cloud_pathways_persistence_enabled",
    ):
        compare(name)
    for host in (0, 1, None):
        compare("is_primary_host", host)
    for processes in ({0}, {1}, {0, 1}, None):
        compare("should_skip_process_sync", processes)
    assert multihost.get_jax_distributed_client() is orbax.get_jax_distributed_client()
    compare("unique_processes_from_devices", np.asarray(jax.devices()))
    compare("process_index_from_device", jax.devices()[-1])
    compare("broadcast_one_to_all", tree)
    compare("broadcast_one_to_all", tree, is_source=index == 1)
    compare("global_max", [index, 5 - index, -index - 1])
    compare("reached_preemption", 3)
    local = jax.local_devices()
    mesh = jax.sharding.Mesh(np.asarray(local), ("x",))
    replicated = jax.device_put(jnp.arange(3), jax.sharding.NamedSharding(mesh, jax.P()))
    by_pmap = jax.pmap(lambda x: x)(jnp.broadcast_to(jnp.arange(3.0), (len(local), 3)))
    for array in (replicated, by_pmap, by_pmap[:, 0]):
        made = [
            module.fully_replicated_host_local_array_to_global_array(array)
            for module in (utils, orbax_utils)
        ]
        assert made[0].sharding.is_equivalent_to(made[1].sharding, made[0].ndim)
        np.testing.assert_array_equal(*made)
        assert len(made[0].global_shards) == len(jax.devices())


def wait(directory: Path) -> None:
    """Pass barriers, in which a process waits for what the other one does before."""
    index = jax.process_index()
    everyone = multihost.get_barrier_sync_fn()
    barriers = [
        functools.partial(multihost.sync_global_processes, "same name"),
        functools.partial(multihost.sync_global_processes, "same name", processes={0, 1}),
        functools.partial(utils.sync_global_devices, "other name", timeout=60),
        functools.partial(everyone, key="key", timeout_ms=60_000),
        functools.partial(
            multihost.sync_global_processes, "given", barrier_sync_fn=everyone, timeout=60
        ),
    ]
    for number, barrier in enumerate(barriers * 2):
        writer = number % 2
        if index == writer:
            (directory / str(number)).touch()
        barrier()
        assert (directory / str(number)).exists()
    multihost.sync_global_processes("alone", processes={index})
    with pytest.raises(ValueError, match=f"{index}, is not among .*\\[{1 - index}\\]"):
        multihost.get_barrier_sync_fn(processes={1 - index})
    if index == 0:
        with pytest.raises(ProcessTimeoutError, match="process 1"):
            multihost.sync_global_processes("without the other", timeout=0.5)
    multihost.sync_global_processes("at the end")


def main(index: int, port: int, scenario: str, directory: Path) -> None:
    """Run a scenario as one of two processes."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
    globals()[scenario](directory)
    jax.distributed.shutdown()
    print("done", flush=True)
