"""Contexts and their options, next to Orbax."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint._src.serialization.types import TransferPriority

import orbit_ckpt
import orbit_ckpt.v1 as ours
from tests.v1.both import LEAKS, run_both

pytestmark = [pytest.mark.interop, LEAKS]


def set_option(context: Any, name: str, value: object) -> None:
    *groups, field = name.split(".")
    for group in groups:
        context = getattr(context, group)
    setattr(context, field, value)


def inside(lib: Any, act: Callable[[Any], object]) -> object:
    with lib.Context() as context:
        return act(context)


CASES: dict[str, Callable[[Any], object]] = {
    "enter": lambda lib: inside(lib, lambda c: type(c).__name__),
    "change an option inside": lambda lib: inside(
        lib, lambda c: set_option(c, "array.saving.use_zarr3", False)
    ),
    "change the layout inside": lambda lib: inside(
        lib, lambda c: set_option(c, "checkpoint_layout", "auto")
    ),
    "change a nested option inside": lambda lib: inside(
        lib, lambda c: set_option(c, "array.saving.storage_options.dtype", "float32")
    ),
    "change an option outside": lambda lib: set_option(
        lib.Context(), "array.saving.use_zarr3", False
    ),
    "replace options": lambda lib: set_option(lib.Context(), "array", None),
    "an unknown layout": lambda lib: lib.Context(checkpoint_layout="x"),
    "a layout by name": lambda lib: (
        lib.Context(checkpoint_layout="safetensors").checkpoint_layout.value
    ),
    "positional options": lambda lib: lib.options.PyTreeOptions.Loading(True),
    "defaults": lambda lib: str(
        [
            lib.Context().asynchronous.timeout_secs,
            lib.Context().multiprocessing.primary_host,
            lib.Context().checkpoint_layout.value,
            lib.Context().array.saving.use_ocdbt,
            lib.Context().pytree.loading.partial_load,
            lib.Context().atomicity.mode.name,
            lib.Context().array.loading.load_and_broadcast_options.primary_replica_id,
        ]
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, tmp_path: Path) -> None:
    mine, theirs = run_both(lambda lib, _: CASES[case](lib), tmp_path)
    assert mine == theirs


def test_context_of_another_is_a_copy(tmp_path: Path) -> None:
    def steps(lib: Any, _: Path) -> object:
        outer = lib.Context()
        outer.array.saving.use_zarr3 = False
        given = lib.options.PyTreeOptions(
            loading=lib.options.PyTreeOptions.Loading(partial_load=True)
        )
        with outer:
            inner = lib.Context(outer, pytree_options=given)
            inner.array.saving.use_ocdbt = False
            given.loading.partial_load = False
        return str(
            [
                (c.array.saving.use_zarr3, c.array.saving.use_ocdbt, c.pytree.loading.partial_load)
                for c in (outer, inner, lib.Context())
            ]
        )

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_contexts_nest_and_threads_have_their_own(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        without = lib.Context()
        without.array.saving.use_ocdbt = False
        found: list[bool] = []

        def save(name: str) -> None:
            lib.save(at / name, {"w": jnp.ones(2)})
            found.append((at / name / "state" / "manifest.ocdbt").is_file())

        async def save_in_task(name: str) -> None:
            await asyncio.to_thread(save, name)

        with without:
            save("a")
            with lib.Context():
                save("b")
            save("c")
            thread = threading.Thread(target=save, args=("d",))
            thread.start()
            thread.join()
            asyncio.run(save_in_task("e"))
        save("f")
        return str(found)

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs == ("str", str([False, True, False, True, False, True]))


def test_two_threads_enter_one_context_at_once() -> None:
    context = ours.Context()
    entered, left = threading.Barrier(2), threading.Barrier(2)
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            with context:
                entered.wait(10)
            left.wait(10)
            context.array.saving.use_zarr3 = True
        except BaseException as error:  # noqa: BLE001 - noted for the test
            errors.append(error)

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


FILES: dict[str, object] = {
    "array.saving.use_ocdbt": False,
    "array.saving.use_zarr3": False,
    "array.saving.use_compression": False,
    "array.saving.ocdbt_target_data_file_size": 10_000,
    "array.saving.storage_options.dtype": jnp.bfloat16,
    "array.saving.storage_options.chunk_byte_size": 512,
    "array.saving.storage_options.shard_axes": (0,),
    "array.saving.use_replica_parallel": False,
    "array.saving.enable_write_sharding_file": False,
    "pytree.saving.pytree_metadata_options": None,
    "memory.write_concurrent_bytes": 100_000,
    "memory.read_concurrent_bytes": 100_000,
    "memory.transfer_concurrent_bytes": 100_000,
    "memory.deepcopy_host_arrays": False,
    "asynchronous.timeout_secs": 60,
    "multiprocessing.barrier_sync_key_prefix": "mine",
}


@pytest.mark.parametrize("name", FILES)
def test_option_of_saves_gives_what_orbax_gives(name: str, tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        context = lib.Context()
        value = FILES[name]
        if name.startswith("pytree."):
            value = type(context.pytree.saving.pytree_metadata_options)(support_rich_types=True)
        set_option(context, name, value)
        rows = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"))
        tree = {"w": jax.device_put(jnp.arange(2048.0).reshape(64, 32), rows)}
        with context:
            lib.save(at / "c", tree)
            found = lib.metadata(at / "c").metadata["w"]
            wanted = jax.ShapeDtypeStruct(found.shape, found.dtype, sharding=rows)
            loaded = lib.load(at / "c", {"w": wanted})
        files = ("manifest.ocdbt", "w/.zarray", "w/zarr.json", "_sharding")
        return str(
            (
                (found.shape, str(found.dtype)),
                (found.storage_metadata.chunk_shape, found.storage_metadata.write_shape),
                [(at / "c" / "state" / file).exists() for file in files],
                np.asarray(loaded["w"], np.float32).sum(),
                str(loaded["w"].dtype),
            )
        )

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_storage_options_of_single_leaves(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        storage = lib.options.ArrayOptions.Saving.StorageOptions
        context = lib.Context()
        context.array.saving.storage_options = storage(dtype=jnp.bfloat16, chunk_byte_size=64)

        def choose(key: Any, _: object) -> Any:
            return storage(dtype=jnp.float16) if "b" in jax.tree_util.keystr(key) else None

        context.array.saving.scoped_storage_options_creator = choose
        with context:
            lib.save(at / "c", {"a": jnp.arange(256.0), "b": jnp.arange(256.0)})
        found = lib.metadata(at / "c").metadata
        return str(
            [(n, str(m.dtype), m.storage_metadata.chunk_shape) for n, m in sorted(found.items())]
        )

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


class Watching:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def key_priority(self, _: Any) -> Any:
        return TransferPriority.SYNCHRONOUS

    def on_transfer_start(self, keypath: Any) -> None: ...

    def on_transfer_end(self, keypath: Any) -> None:
        self.seen.append(f"transferred {jax.tree_util.keystr(keypath)}")

    def on_write_start(self, keypath: Any) -> None: ...

    def on_write_end(self, keypath: Any) -> None:
        self.seen.append(f"written {jax.tree_util.keystr(keypath)}")


def test_callback_is_notified_of_every_array(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        watching = Watching()
        context = lib.Context()
        context.memory.serialization_status_callback = watching
        with context:
            lib.save(at / "c", {"a": {"b": jnp.ones(2)}, "c": jnp.ones(3), "n": np.ones(2), "i": 1})
        return str(sorted(watching.seen))

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_permissions_of_the_directory(tmp_path: Path) -> None:
    def steps(lib: Any, at: Path) -> object:
        context = lib.Context()
        context.file.path_permission_mode = 0o750
        with context:
            lib.save(at / "c", {"a": 1})
        return oct((at / "c").stat().st_mode & 0o777)

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs


def test_function_is_called_after_a_save(tmp_path: Path) -> None:
    called: list[bool] = []
    context = ours.Context()
    context.asynchronous.post_finalization_callback = lambda: called.append(True)
    with context:
        ours.save_async(tmp_path / "c", {"a": 1}).result()
    assert called == [True]


def test_marker_mode_needs_the_marker(tmp_path: Path) -> None:
    context = ours.Context()
    context.atomicity.mode = ours.options.AtomicityMode.COMMIT_FILE
    with context:
        ours.save(tmp_path / "c", {"a": 1})
        assert ours.load(tmp_path / "c") == {"a": 1}
        (tmp_path / "c" / "commit_success.txt").unlink()
        with pytest.raises(ours.errors.InvalidLayoutError):
            ours.load(tmp_path / "c")


def test_misspelt_option_is_named() -> None:
    context: Any = ours.Context()
    with pytest.raises(AttributeError, match="did you mean use_zarr3"):
        context.array.saving.use_zar3 = False


UNUSED: dict[str, object] = {
    "array.saving.enable_pinned_host_transfer": True,
    "array.saving.enable_post_merge_validation": False,
    "array.saving.array_metadata_store": object(),
    "array.loading.raise_array_data_missing_error": False,
    "asynchronous.create_directories_asynchronously": False,
    "file.skip_sync_file_validations": True,
    "memory.regulator_options": object(),
    "memory.expected_surge_bytes": 1,
    "pathways.checkpointing_impl": object(),
    "safetensors.max_over_read_ratio": 2.0,
    "safetensors.read_chunk_bytes": 1,
}


@pytest.mark.parametrize("name", UNUSED)
def test_option_without_effect_warns_once(name: str) -> None:
    context = ours.Context()
    with pytest.warns(UserWarning, match="does nothing here") as caught:
        set_option(context, name, UNUSED[name])
    with ours.Context(context):  # copies the option
        pass
    assert len(caught) == 1
    assert Path(caught[0].filename) == Path(__file__)


def test_safetensors_are_loaded_by_their_layout(tmp_path: Path) -> None:
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.int32)}
    orbit_ckpt.save(tmp_path / "c", values)
    orbit_ckpt.convert(tmp_path / "c", tmp_path / "s", to="safetensors")

    def steps(lib: Any, _: Path) -> object:
        found: list[str] = []
        wanted = {name: jax.ShapeDtypeStruct(v.shape, v.dtype) for name, v in values.items()}
        for layout in ("safetensors", "auto"):
            with lib.Context(checkpoint_layout=layout):
                loaded = lib.load(tmp_path / "s", wanted)
                described = lib.metadata(tmp_path / "s").metadata
            leaves = [(n, np.asarray(x).tolist(), str(x.dtype)) for n, x in sorted(loaded.items())]
            shapes = [(n, tuple(x.shape), str(x.dtype)) for n, x in sorted(described.items())]
            found.append(str((leaves, shapes)))
        return found

    mine, theirs = run_both(steps, tmp_path)
    assert mine == theirs
    with pytest.raises(ours.errors.InvalidLayoutError, match="'auto' for others"):
        ours.load(tmp_path / "s")
    with ours.Context(checkpoint_layout="safetensors"):
        with pytest.raises(NotImplementedError, match="convert"):
            ours.save(tmp_path / "t", values)
        assert ours.load_async(tmp_path / "s").result()["b"].tolist() == [1, 1]
