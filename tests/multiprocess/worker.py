"""One process of a program, which prints `done` if all is as it should be."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from orbit_ckpt._src.runtime.jax_process_group import barrier_or_fail
from orbit_ckpt._src.storage import incremental as incremental_save
from orbit_ckpt._src.storage import ocdbt_expected
from orbit_ckpt._src.storage.array_layouts import ArrayLayouts
from orbit_ckpt._src.storage.batch_write import BatchWriter
from orbit_ckpt._src.storage.ocdbt_merge import DatabaseMerge
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt.errors import ProcessFailedError, ProcessTimeoutError
from orbit_ckpt.type_handlers import (
    ArrayHandler,
    NumpyHandler,
    SingleReplicaArrayHandler,
    create_type_handler_registry,
)
from tests.multiprocess.trees import OTHERS, check_tree, make_mesh, make_shardings, make_tree

LONG_S, SHORT_S = 60.0, 4.0


class Data:
    """What every process has a state of."""

    def __init__(self, state: object) -> None:
        self.state = state

    def get_state(self) -> object:
        return self.state

    def set_state(self, state: object) -> None:
        self.state = state


def save(path: Path, tree: object, *, timeout_s: float = LONG_S, force: bool = False) -> None:
    options = ocp.MultiprocessingOptions(timeout_secs=timeout_s)
    handler = ocp.PyTreeHandler()
    with ocp.Checkpointer(handler, multiprocessing_options=options) as checkpointer:
        checkpointer.save(path, tree, force=force)


def raised_by(run: Callable[[], object]) -> Exception:
    try:
        run()
    except Exception as error:  # noqa: BLE001 - looked at by the scenario
        return error
    raise AssertionError("nothing was raised")


def result(handle: ocp.SaveHandle | None) -> None:
    if handle is not None:
        handle.result(LONG_S)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def while_training(directory: Path, tree: dict[str, Any]) -> None:
    """Donate all arrays right after each save in the background."""
    step = jax.jit(lambda arrays: jax.tree.map(lambda x: x * 1, arrays))
    forget = jax.jit(lambda arrays: jax.tree.map(lambda x: x * 0, arrays), donate_argnums=0)
    for mode in ("auto", "reference", "copy", "device"):
        state = {**tree, "arrays": step(tree["arrays"])}
        options = ocp.AsyncOptions(snapshot=mode)
        with ocp.StandardCheckpointer(async_options=options) as checkpointer:
            checkpointer.save(directory / f"while_training_{mode}", state)
            jax.block_until_ready(forget(state["arrays"]))
        check_tree(ocp.load(directory / f"while_training_{mode}"))


def exchange(directory: Path) -> None:
    """Save together, load what one process and what all have saved."""
    index = jax.process_index()
    shardings = make_shardings(make_mesh())
    tree = make_tree()
    ocp.save(directory / "by_two", tree)
    check_tree(ocp.load(directory / "by_two"), shardings)
    check_tree(ocp.load(directory / "by_two", like=tree), shardings)
    check_tree(ocp.load(directory / "by_one", like=tree), shardings)
    far = NamedSharding(Mesh(make_mesh().devices[1], "y"), PartitionSpec("y"))
    target = {"large": jax.ShapeDtypeStruct((64, 64), np.float32, sharding=far)}
    found = ocp.load(directory / "by_two", like={"arrays": target}, unexpected="ignore")
    assert found["arrays"]["large"].sharding == far  # one process has no part of it
    assert len(found["arrays"]["large"].addressable_shards) == 2 * index
    ocp.save_async(directory / "by_two_later", tree).result(LONG_S)
    check_tree(ocp.load(directory / "by_two_later"), shardings)
    while_training(directory, tree)
    save(directory / "by_two_again", tree)
    save(directory / "by_two_again", tree, force=True)
    in_place = ocp.AtomicityOptions(mode=ocp.AtomicityMode.COMMIT_FILE)
    with ocp.Checkpointer(ocp.PyTreeHandler(), atomicity_options=in_place) as checkpointer:
        checkpointer.save(directory / "by_two_in_place", tree)
        check_tree(checkpointer.restore(directory / "by_two_in_place"), shardings)
    items = ocp.args.Composite(
        state=ocp.args.StandardSave(tree),
        notes=ocp.args.JsonSave([index]),
        data=ocp.args.StatefulSave(Data({"read": jax.numpy.full(3, index)})),
    )
    with ocp.Checkpointer(ocp.CompositeHandler()) as checkpointer:
        checkpointer.save(directory / "by_two_items", items)
        found = checkpointer.restore(directory / "by_two_items")
        check_tree(found.state, shardings)
        assert found.notes == [0]  # the first process's
        assert found.data["read"].tolist() == [index] * 3
    for use_ocdbt, use_zarr3 in ((True, False), (False, True), (False, False)):
        handler = ocp.PyTreeHandler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
        path = directory / f"by_two_{use_ocdbt}_{use_zarr3}"
        with ocp.Checkpointer(handler) as checkpointer:
            checkpointer.save(path, tree)
        check_tree(ocp.load(path, like=tree), shardings)
    overrides(directory, tree)
    with_handler_options(directory / "by_two_options", tree, shardings)


class Marked(ArrayHandler):
    """Records JSON of every array."""

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        for info in infos:
            info.ext_metadata = {"unit": "m"}
        return await super().serialize(values, infos, args)


class Validator:
    """Notes the processes whose records it checks."""

    seen: tuple[int, ...] = ()

    def validate_all_array_metadatas(self, array_metadatas: dict[int, list[Any]]) -> None:
        self.seen = tuple(array_metadatas)
        (names,) = {tuple(r.param_name for r in records) for records in array_metadatas.values()}
        assert "arrays.replicated" in names
        assert all(r.ext_metadata["unit"] == "m" for r in array_metadatas[1])


def with_handler_options(
    path: Path, tree: dict[str, Any], shardings: dict[str, NamedSharding]
) -> None:
    """Save into databases of several names, with records of every array."""
    registry = create_type_handler_registry(
        (jax.Array, Marked(enable_replica_parallel_separate_folder=True)),
        (np.ndarray, NumpyHandler(ocdbt_process_id="host")),
    )
    validator = Validator()
    handler = ocp.PyTreeHandler(type_handler_registry=registry, array_metadata_validator=validator)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(path, tree)
    assert validator.seen == ((0, 1) if jax.process_index() == 0 else ())
    check_tree(ocp.load(path, like=tree), shardings)


class SaveOverride(ocp.PyTreeHandler):
    """Saves as its base does, and lets the primary process add a file at the end."""

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        super().save(directory, *args, **kwargs)

    def finalize(self, directory: Any) -> None:
        assert (directory / "manifest.ocdbt").exists()  # of all processes
        (directory / "by.txt").write_text(str(jax.process_index()))


class AsyncOverride(SaveOverride):
    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        return await super().async_save(directory, *args, **kwargs)


def overrides(directory: Path, tree: object) -> None:
    """Save with handlers that override methods."""
    for handler in (SaveOverride(), AsyncOverride()):
        for kind in (ocp.Checkpointer, ocp.AsyncCheckpointer):
            with kind(handler) as checkpointer:
                path = directory / f"{type(handler).__name__}{kind.__name__}"
                checkpointer.save(path, args=ocp.args.PyTreeSave(tree))


def failures(directory: Path) -> None:
    """Fail on one process, at each phase; all raise, and the next save is a good one."""
    index = jax.process_index()
    tree = make_tree()
    save(directory / "earlier", tree)

    local = {"w": jax.numpy.ones(3)}
    error = raised_by(lambda: save(directory / "local", local))
    assert isinstance(error, ocp.errors.UnsupportedLeafError | ProcessFailedError), error
    assert "one process only" in str(error)

    def refuse(state: dict[str, Any], info: dict[str, Any]) -> tuple[Any, Any]:
        if index == 1:
            raise ValueError("no transform today")
        return state, info

    for begin in (ocp.save, ocp.save_async):
        error = raised_by(
            lambda b=begin: result(b(directory / "changed", tree, transforms=[refuse]))
        )
        assert "no transform today" in str(error), error

    error = raised_by(lambda: save(directory / "earlier", tree))
    expected = ocp.errors.CheckpointExistsError if index == 0 else ProcessFailedError
    assert isinstance(error, expected), error
    assert "already exists" in str(error)

    for guilty in (0, 1):
        for owner, name in (
            (BatchWriter, "add"),
            (BatchWriter, "commit"),
            (DatabaseWriter, "close"),
        ):
            path = directory / f"failed_{guilty}"
            error = raised_by(lambda p=path, o=owner, n=name, g=guilty: broken(p, tree, o, n, g))
            assert "the disk is on fire" in str(error), error
            assert index == guilty or f"process {guilty} failed" in str(error), error
    save(directory / "failed_1", tree)
    check_tree(ocp.load(directory / "failed_1", like=tree))
    check_tree(ocp.load(directory / "earlier", like=tree))

    other = {**tree, "arrays": {**tree["arrays"], "sharded" if index else "other": tree["keys"]}}
    error = raised_by(lambda: save(directory / "different", other))
    assert "do not save the same tree" in str(error), error


def unreadable(directory: Path) -> None:
    """Let one process fail to read how arrays are stored, which one replica is to send to all."""
    index = jax.process_index()
    tree = make_tree()
    path = directory / "saved"
    save(path, tree)
    registry = create_type_handler_registry((jax.Array, SingleReplicaArrayHandler()))
    handler = ocp.PyTreeHandler(type_handler_registry=registry)
    original = ArrayLayouts.find

    def fail(*_: object) -> None:
        raise ocp.errors.CorruptionError("the disk is on fire")

    for guilty in (0, 1):
        with ocp.Checkpointer(handler) as checkpointer:
            if index == guilty:
                setattr(ArrayLayouts, "find", fail)  # noqa: B010 - a method
            error = raised_by(lambda c=checkpointer: c.restore(path))
            setattr(ArrayLayouts, "find", original)  # noqa: B010 - a method
            if index == guilty:
                assert isinstance(error, ocp.errors.CorruptionError), error
            else:
                assert isinstance(error, ProcessFailedError), error
                assert error.process == guilty
                assert "the disk is on fire" in str(error)
            check_tree(checkpointer.restore(path), make_shardings(make_mesh()))

    late = functools.partial(barrier_or_fail, "something", range(2), timeout_s=SHORT_S)
    if index == 0:  # the other one never comes
        error = raised_by(late)
        assert isinstance(error, ProcessTimeoutError), error
        assert error.missing == {1: "not here yet"}


def broken(path: Path, tree: object, owner: type, name: str, guilty: int) -> None:
    """Save with a method that fails on one process."""
    original = getattr(owner, name)

    def fail(*_: object) -> None:
        raise ValueError("the disk is on fire")

    if jax.process_index() == guilty:
        setattr(owner, name, fail)
    try:
        save(path, tree)
    finally:
        setattr(owner, name, original)


def killed(directory: Path) -> None:
    """Let the second process be killed as it writes."""
    tree = make_tree()
    save(directory / "earlier", tree)

    def die(_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if jax.process_index() == 1:
        setattr(DatabaseWriter, "close", die)  # noqa: B010 - a method
    error = raised_by(lambda: save(directory / "later", tree, timeout_s=SHORT_S))
    assert isinstance(error, ProcessTimeoutError), error
    assert error.missing == {1: "writing"}
    assert f"waited {SHORT_S:g} s at barrier 'written' for process 1 (last: writing)" in str(error)
    assert names_in(directory) == ["earlier"], names_in(directory)
    check_tree(ocp.load(directory / "earlier", like=tree))
    print("done", flush=True)
    os._exit(0)  # JAX would wait for the other one


def merging(directory: Path) -> None:
    """Let the second process merge ranges of keys; then fail at it, then be killed."""
    index = jax.process_index()
    tree = make_tree()
    for name in ("RANGE_BYTES", "SHARED_BYTES"):
        setattr(ocdbt_expected, name, 150)
    save(directory / "merged", tree)
    check_tree(ocp.load(directory / "merged"), make_shardings(make_mesh()))

    merge = DatabaseMerge.merge
    merged: list[int] = []

    def fail(self: DatabaseMerge, starts: Any, number: int) -> Any:
        merged.append(number)
        if number == 2:
            raise OSError("the disk is on fire")
        return merge(self, starts, number)

    setattr(DatabaseMerge, "merge", fail)  # noqa: B010 - a method
    error = raised_by(lambda: save(directory / "failed", tree))
    assert "the disk is on fire" in str(error), error
    assert merged == [0, 1, 2] * index, merged
    if index == 0:
        assert isinstance(error, ProcessFailedError), error
        assert "process 1 failed while merging" in str(error), error

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(DatabaseMerge, "merge", die)  # noqa: B010 - a method
    error = raised_by(lambda: save(directory / "killed", tree, timeout_s=SHORT_S))
    assert isinstance(error, ProcessTimeoutError), error
    assert error.missing == {1: "merging"}
    assert names_in(directory) == ["merged"], names_in(directory)
    print("done", flush=True)
    os._exit(0)  # JAX would wait for the other one


def hosts(directory: Path) -> None:
    """Save with another primary process, with one process, and each on its own."""
    index = jax.process_index()
    tree = make_tree()

    second = ocp.MultiprocessingOptions(
        primary_host=1, timeout_secs=LONG_S, barrier_sync_key_prefix="a program/of several"
    )
    items = ocp.args.Composite(
        state=ocp.args.StandardSave({**tree, "numpy": np.full(3, index)}),
        notes=ocp.args.JsonSave([index]),
    )
    with ocp.Checkpointer(ocp.CompositeHandler(), multiprocessing_options=second) as checkpointer:
        checkpointer.save(directory / "by_second", items)
        found = checkpointer.restore(directory / "by_second")
    assert found.notes == [1]
    assert found.state["numpy"].tolist() == [1, 1, 1]
    check_tree({**found.state, "numpy": tree["numpy"]}, make_shardings(make_mesh()))

    only = ocp.MultiprocessingOptions(primary_host=1, active_processes={1})
    with ocp.Checkpointer(ocp.PyTreeHandler(), multiprocessing_options=only) as checkpointer:
        local = {"w": jax.numpy.full(3, index), "index": index}
        if index == 0:
            error = raised_by(lambda: checkpointer.save(directory / "by_none", local))
            assert "this process, 0, is not among the processes that save: [1]" in str(error)
        else:
            checkpointer.save(directory / "by_one_of_two", local)

    own = ocp.MultiprocessingOptions(primary_host=None)
    options = ocp.CheckpointManagerOptions(multiprocessing_options=own, max_to_keep=1)
    with ocp.CheckpointManager(directory / f"local_{index}", options=options) as manager:
        for step in range(3 + index):  # nobody waits for anybody
            manager.save(step, {"w": jax.numpy.full(3, index), "step": step})
        manager.wait_until_finished()
        assert manager.all_steps() == [2 + index]
        assert manager.restore()["w"].tolist() == [index] * 3
        error = raised_by(lambda: manager.save(9, tree))
        assert "and this one saves alone" in str(error), error


def frozen_arrays() -> dict[str, jax.Array]:
    """Return outputs of compiled functions, two of which are one array."""
    large, everywhere = (make_shardings(make_mesh())[name] for name in ("large", "replicated"))
    sharded = jax.jit(
        lambda: jax.numpy.arange(1 << 17).reshape(256, -1) * 7919, out_shardings=large
    )
    tied = jax.jit(lambda: jax.numpy.arange(1 << 16) * 7907, out_shardings=everywhere)()
    return {"sharded": sharded(), "embed": tied, "head": tied}


def incremental(directory: Path) -> None:
    """Save steps, of which each process shares its part with the step before."""
    index = jax.process_index()
    tree = {**make_tree(), "frozen": frozen_arrays()}

    def save(path: Path, base: Path, **changed: Any) -> Any:
        handle = ocp.save_async(path, {**tree, **changed}, base=base)
        result(handle)
        found = ocp.load(path, like=tree)
        check_tree({**found, **OTHERS})
        for name, array in tree["frozen"].items():
            for one, other in zip(
                array.addressable_shards, found["frozen"][name].addressable_shards, strict=True
            ):
                np.testing.assert_array_equal(one.data, other.data)
        return handle.reused

    reused = save(directory / "0", directory / "by_one")
    assert reused.referred == 0
    assert "saved by 1 process, not by 2" in str(reused.why_not)
    reused = save(directory / "1", directory / "0", step=8)
    assert reused.why_not is None
    assert reused.referred > 10_000  # each process shares its own part
    barrier_or_fail("read step 1", range(2))  # the other process still reads it
    if index == 1:
        largest = max((directory / "1/ocdbt.process_1/d").iterdir(), key=lambda f: f.stat().st_size)
        largest.unlink()
    reused = save(directory / "2", directory / "1", step=9)
    assert (reused.referred > 10_000) == (index == 0)
    assert ("cannot be linked" in str(reused.why_not)) == (index == 1)
    error = raised_by(lambda: save(directory / "refused", directory / f"{2 * index}"))
    assert "refer to different earlier checkpoints" in str(error), error
    error = raised_by(lambda: result(alike(directory / "refused", tree, is_incremental=index == 0)))
    assert "do not save alike" in str(error), error
    by_identity(directory / "run", tree)


def alike(path: Path, tree: object, *, is_incremental: bool) -> ocp.SaveHandle:
    return ocp.save_async(path, tree, base=path.with_name("2") if is_incremental else None)


def by_identity(root: Path, tree: dict[str, Any]) -> None:
    """Save arrays that are the same objects, which are not hashed again but in a full step."""
    hashed: list[int] = []
    original = incremental_save.digest_of

    def count(pieces: Any) -> bytes:
        buffers = list(pieces)
        hashed.append(sum(memoryview(piece).nbytes for piece in buffers))
        return original(buffers)

    incremental_save.digest_of = count
    options = ocp.CheckpointManagerOptions(incremental=True, full_every=3)
    with ocp.CheckpointManager(root, options=options) as run:
        for step in range(4):
            hashed.clear()
            run.save(step, args=ocp.args.StandardSave({**tree, "step": step}))
            run.wait_until_finished()
            assert (sum(hashed) > 100_000) == (step in (0, 3)), (step, sum(hashed))
            assert run.restore(step)["step"] == step
    incremental_save.digest_of = original


def main(index: int, count: int, port: int, scenario: str, directory: str) -> None:
    """Run a scenario in a directory as one of several processes."""
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    assert len(jax.devices()) == 2 * count
    assert np.prod(make_mesh().devices.shape) == 4
    globals()[scenario](resolve_path(directory))
    jax.distributed.shutdown()
    print("done", flush=True)
