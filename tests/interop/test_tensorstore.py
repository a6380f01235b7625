"""Contexts, specs and arrays of TensorStore, against Orbax's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as orbax
import pytest
import tensorstore as ts
from etils import epath
from orbax.checkpoint import serialization as orbax_serialization

import orbit_ckpt as ocp
from orbit_ckpt import serialization
from tests.support import make_mesh, put

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("quiet_orbax")]

LIBRARIES: list[Any] = [ocp, orbax]
both = pytest.mark.parametrize("library", LIBRARIES, ids=["ours", "orbax"])
other = pytest.mark.parametrize("reader", LIBRARIES, ids=["read by ours", "read by orbax"])
layouts = pytest.mark.parametrize(
    ("use_ocdbt", "use_zarr3"), [(True, True), (True, False), (False, True), (False, False)]
)


def info_of(library: Any, name: str, directory: Path, **options: Any) -> Any:
    parent: Any = epath.Path(directory)
    return library.type_handlers.ParamInfo(
        name=name, parent_dir=parent, path=parent / name, **options
    )


def open_array(library: Any, spec: dict[str, Any], **options: Any) -> ts.TensorStore:
    context = library.type_handlers.get_ts_context()
    opened: Any = ts.open(spec, context=context, **options)
    return opened.result()


class Empty(NamedTuple):
    pass


# Contexts


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_ocdbt": False},
        {"file_io_concurrency_limit": 3},
        {"data_copy_concurrency_limit": 2, "use_ocdbt": False},
    ],
)
def test_context_is_that_of_orbax(options: dict[str, Any]) -> None:
    found = ocp.type_handlers.get_ts_context(**options).spec.to_json()
    assert found == orbax.type_handlers.get_ts_context(**options).spec.to_json()
    assert serialization.ts_utils.get_ts_context is ocp.type_handlers.get_ts_context


def test_context_with_no_concurrency_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        ocp.type_handlers.get_ts_context(file_io_concurrency_limit=0)


# Specs

TREE = {
    "a": np.arange(30, dtype=np.int16).reshape(5, 6),
    "b": {"c": np.linspace(0, 1, 20_000, dtype=np.float32)},
    "half": np.arange(4).astype(ml_dtypes.bfloat16),
    "number": np.float32(2.5),
}


@both
@other
@layouts
def test_spec_opens_arrays_of_both_libraries(
    library: Any, reader: Any, use_ocdbt: bool, use_zarr3: bool, tmp_path: Path
) -> None:
    handler = library.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    library.Checkpointer(handler).save(tmp_path / "c", TREE)
    for name, expected in ocp.tree.to_flat_dict(TREE, sep=".").items():
        info = info_of(reader, name, tmp_path / "c", use_zarr3=use_zarr3)
        spec = reader.type_handlers.get_json_tspec_read(info, use_ocdbt)
        found = open_array(reader, spec).read().result()
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
        args = reader.RestoreArgs(dtype=np.float32)
        casting = reader.type_handlers.get_cast_tspec_deserialize(spec, args)
        assert open_array(reader, casting).dtype.numpy_dtype == np.float32


@pytest.mark.parametrize("raises", [True, False])
def test_missing_chunk_is_an_error_or_zeros(raises: bool, tmp_path: Path) -> None:
    handler = ocp.PyTreeHandler(use_ocdbt=False, use_zarr3=False)
    ocp.Checkpointer(handler).save(tmp_path / "c", {"a": np.ones(3)})
    (tmp_path / "c" / "a" / "0").unlink()
    for library in LIBRARIES:
        info = info_of(library, "a", tmp_path / "c", use_zarr3=False)
        spec = library.type_handlers.get_json_tspec_read(
            info, False, raise_array_data_missing_error=raises
        )
        array = open_array(library, spec)
        if raises:
            with pytest.raises(ValueError, match="missing"):
                array.read().result()
        else:
            assert array.read().result().tolist() == [0, 0, 0]


def test_document_of_an_array_may_have_another_name(tmp_path: Path) -> None:
    for library in LIBRARIES:
        info = info_of(library, "a", tmp_path, use_zarr3=False)
        spec = library.type_handlers.get_json_tspec_read(info, False, metadata_key="mk")
        assert spec["metadata_key"] == "mk"


@both
@other
@layouts
@pytest.mark.parametrize("dtype", [None, np.dtype(np.float32)])
@pytest.mark.parametrize("process", [None, 3])
def test_array_that_a_spec_creates_is_read_with_the_other_library(
    library: Any,
    reader: Any,
    use_ocdbt: bool,
    use_zarr3: bool,
    dtype: Any,
    process: int | None,
    tmp_path: Path,
) -> None:
    values = np.arange(48, dtype=np.int32).reshape(8, 6)
    info = info_of(library, "a.b", tmp_path, use_zarr3=use_zarr3, ocdbt_target_data_file_size=10**6)
    spec = library.type_handlers.get_json_tspec_write(
        info,
        use_ocdbt,
        global_shape=values.shape,
        local_shape=(4, 6),
        dtype=values.dtype,
        process_index=process,
        arg=library.SaveArgs(dtype=dtype, chunk_byte_size=48),
    )
    open_array(library, spec, create=True).write(values).result()
    directory = tmp_path
    if process is not None and use_ocdbt:
        directory /= f"ocdbt.process_{process}"
    assert (directory / "manifest.ocdbt").exists() == use_ocdbt
    read = reader.type_handlers.get_json_tspec_read(
        info_of(reader, "a.b", directory, use_zarr3=use_zarr3), use_ocdbt
    )
    found = open_array(reader, read)
    np.testing.assert_array_equal(found.read().result(), values)
    assert found.dtype.numpy_dtype == (dtype or np.int32)
    assert found.chunk_layout.read_chunk.shape == (2, 6)


@pytest.mark.parametrize("dtype", [np.int32, jnp.bfloat16, None])
def test_specs_of_casts_are_those_of_orbax(dtype: Any) -> None:
    for name, args, value in (
        ("get_cast_tspec_serialize", "SaveArgs", (np.ones(2, np.float32),)),
        ("get_cast_tspec_deserialize", "RestoreArgs", ()),
    ):
        ours, theirs = (
            getattr(library.type_handlers, name)(
                {"driver": "zarr"}, *value, getattr(library, args)(dtype=dtype)
            )
            for library in LIBRARIES
        )
        assert ours == theirs


def test_spec_without_a_directory_for_its_data_names_the_limit() -> None:
    info = info_of(ocp, "a", Path("/tmp/c"), use_zarr3=False)  # noqa: S108 - nothing is written
    with pytest.raises(ValueError, match="chunk_byte_size=1 must be >= 4"):
        ocp.type_handlers.get_json_tspec_write(
            info, True, (3,), (3,), np.dtype(np.int32), arg=ocp.SaveArgs(chunk_byte_size=1)
        )


def test_dtype_that_tensorstore_lacks_has_no_spec() -> None:
    info = info_of(ocp, "a", Path("/tmp/c"), use_zarr3=False)  # noqa: S108 - nothing is written
    with pytest.raises(TypeError, match="a: TensorStore cannot write datetime64"):
        ocp.type_handlers.get_json_tspec_write(info, True, (3,), (3,), np.dtype("datetime64[s]"))


# Functions of type handlers


@pytest.mark.parametrize("args", [(), ([1],), ([1], [2])])
def test_arguments_of_one_length_are_accepted(args: Any) -> None:
    for library in LIBRARIES:
        library.type_handlers.check_input_arguments(*args)


@pytest.mark.parametrize("args", [([], []), ([1], []), ([1, 2], [3])])
def test_arguments_of_other_lengths_are_refused(args: Any) -> None:
    for library in LIBRARIES:
        with pytest.raises(ValueError, match="length"):
            library.type_handlers.check_input_arguments(*args)


@pytest.mark.parametrize(
    "value",
    [
        *("text", 1, 1.5, True, np.float32(1), np.ones(2), b"bytes", jnp.ones(2)),
        *(None, {}, [], (), {"a": 1}, [1], object(), int, {1}),
    ],
)
def test_supported_values_are_those_of_orbax(value: Any) -> None:
    for name in ("is_supported_type", "is_supported_empty_value"):
        ours, theirs = (getattr(library.type_handlers, name)(value) for library in LIBRARIES)
        assert ours == theirs, name


def test_empty_namedtuple_is_supported_with_rich_types() -> None:
    empty = Empty()
    rich = ocp.PyTreeMetadataOptions(support_rich_types=True)
    assert ocp.type_handlers.is_supported_empty_value(empty, rich)
    assert not ocp.type_handlers.is_supported_empty_value(empty)


@both
def test_checkpoint_with_a_database_is_told(library: Any, tmp_path: Path) -> None:
    for use_ocdbt in (True, False):
        path = tmp_path / str(use_ocdbt)
        handler = library.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt)
        library.Checkpointer(handler).save(path, {"a": np.ones(3)})
        assert ocp.type_handlers.is_ocdbt_checkpoint(path) is use_ocdbt
        assert orbax.type_handlers.is_ocdbt_checkpoint(path) is use_ocdbt


@both
@other
def test_databases_of_processes_are_merged(library: Any, reader: Any, tmp_path: Path) -> None:
    large = np.arange(1000)
    for process in (0, 1):
        info = info_of(library, f"a{process}", tmp_path, use_zarr3=False)
        spec = library.type_handlers.get_json_tspec_write(
            info, True, large.shape, large.shape, large.dtype, process_index=process
        )
        open_array(library, spec, create=True).write(large + process).result()
    directory: Any = epath.Path(tmp_path)
    asyncio.run(
        library.type_handlers.merge_ocdbt_per_process_files(
            directory, library.type_handlers.get_ts_context(), use_zarr3=False
        )
    )
    for process in (0, 1):
        info = info_of(reader, f"a{process}", tmp_path, use_zarr3=False)
        read = reader.type_handlers.get_json_tspec_read(info, True)
        found = open_array(reader, read).read().result()
        np.testing.assert_array_equal(found, large + process)


def test_nothing_is_merged_without_databases(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(ocp.type_handlers.merge_ocdbt_per_process_files(tmp_path, None, use_zarr3=False))
    assert not list(tmp_path.iterdir())
    assert "no databases of processes" in caplog.text


def test_standard_handlers_are_registered_with_options(tmp_path: Path) -> None:
    with ocp.test_utils.global_type_handler_registry_context():
        ocp.type_handlers.register_standard_handlers_with_options(
            use_ocdbt=True, ts_context=None, metadata_key="mk"
        )
        tree = {"a": np.ones(3), "b": 1, "c": jnp.ones(3), "d": b"bytes"}
        handler = ocp.PyTreeHandler(use_ocdbt=False, use_zarr3=False)
        ocp.Checkpointer(handler).save(tmp_path / "c", tree)
    assert all((tmp_path / "c" / name / "mk").exists() for name in tree)


# Arrays


def arrays() -> dict[str, jax.Array]:
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    return {
        "whole": jnp.asarray(values),
        "split": put(values, "x", "y", x=4, y=2),
        "replicated": put(values, x=8),
        "partly": put(values, "x", x=4, y=2),
        "half": put(values.astype(ml_dtypes.bfloat16), None, "x", x=8),
        "scalar": jnp.float32(3),
        "empty": jnp.zeros((0, 3)),
    }


ARRAYS = sorted(arrays())


def file_spec(path: Path) -> dict[str, Any]:
    return {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("writer", [serialization, orbax_serialization], ids=["ours", "orbax"])
@pytest.mark.parametrize("reader", [serialization, orbax_serialization], ids=["ours", "orbax"])
def test_array_is_written_and_read_with_both_libraries(
    name: str, writer: Any, reader: Any, tmp_path: Path
) -> None:
    array = arrays()[name]
    asyncio.run(writer.async_serialize(array, file_spec(tmp_path)))
    for dtype in (None, np.int32):
        found, nbytes = asyncio.run(
            reader.async_deserialize(array.sharding, file_spec(tmp_path), dtype=dtype)
        )
        assert found.sharding == array.sharding
        assert found.dtype == (dtype or array.dtype)
        np.testing.assert_array_equal(found, np.asarray(array).astype(found.dtype))
        assert nbytes >= array.nbytes


@pytest.mark.parametrize("shape", [(8, 8), (16, 8), (4, 8), (8, 16), (4, 16)])
def test_array_is_padded_and_cut_as_by_orbax(shape: tuple[int, int], tmp_path: Path) -> None:
    asyncio.run(serialization.async_serialize(arrays()["split"], file_spec(tmp_path)))
    sharding = jax.sharding.NamedSharding(make_mesh(x=4, y=2), jax.P("x", "y"))
    results = [
        asyncio.run(module.async_deserialize(sharding, file_spec(tmp_path), shape, strict=False))
        for module in (serialization, orbax_serialization)
    ]
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    if shape != (8, 8):
        with pytest.raises(ValueError, match="give strict=False"):
            asyncio.run(serialization.async_deserialize(sharding, file_spec(tmp_path), shape))


class Budget:
    """Counts the bytes that are taken and given back."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.held = 0

    async def wait_for_bytes(self, requested_bytes: int) -> None:
        self.taken.append(requested_bytes)
        self.held += requested_bytes

    async def release_bytes(self, requested_bytes: int) -> None:
        self.held -= requested_bytes


def test_bytes_of_an_array_are_limited(tmp_path: Path) -> None:
    array, budget = arrays()["split"], Budget()
    asyncio.run(serialization.async_serialize(array, file_spec(tmp_path), byte_limiter=budget))
    found, nbytes = asyncio.run(
        serialization.async_deserialize(array.sharding, file_spec(tmp_path), byte_limiter=budget)
    )
    np.testing.assert_array_equal(found, array)
    assert sum(budget.taken) == array.nbytes + nbytes
    assert budget.held == 0


def test_array_is_read_with_a_layout_in_memory(tmp_path: Path) -> None:
    array = arrays()["whole"]
    asyncio.run(serialization.async_serialize(array, file_spec(tmp_path)))
    layout = cast(Any, array).format
    found, _ = asyncio.run(serialization.async_deserialize(layout, file_spec(tmp_path)))
    assert cast(Any, found).format == layout
    with pytest.raises(TypeError, match=r"expected a jax\.sharding\.Sharding"):
        asyncio.run(serialization.async_deserialize("x", file_spec(tmp_path)))


def test_array_is_written_in_a_transaction(tmp_path: Path) -> None:
    array, transaction = arrays()["split"], ts.Transaction()
    spec = {**file_spec(tmp_path), "metadata": {"chunks": [8, 8], "shape": [8, 8]}}
    asyncio.run(serialization.async_serialize(array, spec, transaction=transaction))
    assert not list(tmp_path.iterdir())
    transaction.commit_sync()
    assert (tmp_path / "0.0").exists()
