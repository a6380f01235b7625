"""Every kind of leaf comes back with its value, dtype, Python type and sharding."""

from __future__ import annotations

import enum
import fractions
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import orbit_ckpt as ocp
from orbit_ckpt.errors import NameCollisionError, UnsupportedLeafError
from tests.support import LAYOUTS, assert_same_leaf, assert_same_tree, checkpointer, put

ML_DTYPES = [
    *("bfloat16", "int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn"),
    *("float6_e3m2fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
NUMPY_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16"),
    *("float32", "float64", "complex64", "complex128", "datetime64[ns]", "datetime64[D]"),
    *("timedelta64[3s]", ">i2", ">u8", ">f4", ">c16", ">M8[us]"),
]
KEY_WORDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}

GRID = np.arange(64, dtype=np.float32).reshape(8, 8)


def values_of(dtype: str) -> np.ndarray:
    """Return numbers of a dtype, extreme ones and NaN with all kinds of bits among them."""
    kind = np.dtype(dtype)
    if "int2" in kind.name or "int4" in kind.name:
        return np.array([0, 1, 1, 0], kind)
    if kind.name == "bool":
        return np.array([True, False, True, True])
    bits = np.random.default_rng(0).integers(0, 256, (4, 3, kind.itemsize), np.uint8)
    if kind.name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"):
        bits &= 0x0F
    return bits.view(kind)[..., 0]


def keys_of(impl: str, shape: tuple[int, ...]) -> jax.Array:
    words = np.random.default_rng(0).integers(0, 2**32, (*shape, KEY_WORDS[impl]), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=impl)


def permuted() -> NamedSharding:
    devices = np.array(jax.devices())[[3, 1, 2, 0]].reshape(2, 2)
    mesh = Mesh(devices, ("a", "b"), axis_types=(AxisType.Explicit, AxisType.Auto))
    return NamedSharding(mesh, P("b", "a"))


JAX_ARRAYS: dict[str, Callable[[], jax.Array]] = {
    "default device": lambda: jnp.asarray(GRID),
    "other device": lambda: jax.device_put(GRID, jax.devices()[5]),
    "fully sharded": lambda: put(GRID, "x", x=8),
    "sharded along two dimensions": lambda: put(GRID, "y", "x", x=4, y=2),
    "sharded along one dimension by two axes": lambda: put(GRID, None, ("x", "y"), x=4, y=2),
    "replicated": lambda: put(GRID, x=8),
    "partially replicated": lambda: put(GRID, "y", x=4, y=2),
    "over some devices in another order": lambda: jax.device_put(GRID, permuted()),
    "scalar": lambda: jnp.float32(1.5),
    "replicated scalar": lambda: put(np.int32(7), x=8),
    "empty": lambda: jnp.zeros((3, 0)),
    "empty and sharded": lambda: put(np.zeros((0, 3), np.int32), "x", x=8),
    **{f"raw key {i}": lambda i=i: jax.random.PRNGKey(i) for i in range(2)},
    **{
        dtype: lambda dtype=dtype: put(values_of(dtype), None, x=2)
        for dtype in ("bool", "complex64", *ML_DTYPES)
        if not dtype.startswith("float6")  # not a dtype of JAX
    },
}
KEYS: dict[str, Callable[[], jax.Array]] = {
    **{
        f"{impl} {shape}": lambda impl=impl, shape=shape: keys_of(impl, shape)
        for impl in KEY_WORDS
        for shape in [(), (3,), (2, 2), (0,)]
    },
    **{
        f"{impl} sharded": lambda impl=impl: put(keys_of(impl, (8,)), "x", x=8)
        for impl in KEY_WORDS
    },
    "replicated": lambda: put(keys_of("rbg", (3,)), x=8),
    "sharded along one of two dimensions": lambda: put(keys_of("rbg", (3, 8)), None, "x", x=8),
}
NUMPY_ARRAYS: dict[str, Callable[[], np.ndarray]] = {
    **{dtype: lambda dtype=dtype: values_of(dtype) for dtype in (*NUMPY_DTYPES, *ML_DTYPES)},
    "scalar": lambda: np.array(2.5),
    "empty": lambda: np.zeros(0),
    "empty along one dimension": lambda: np.zeros((3, 0, 2), np.int16),
    "every second": lambda: GRID[::2, 1::3],
    "backwards": lambda: GRID[::-1],
    "transposed": lambda: GRID[:3].T,
    "broadcast": lambda: np.broadcast_to(np.float32(3), (4, 5)),
    "Fortran order": lambda: np.asfortranarray(GRID[:3]),
    "big-endian scalar": lambda: np.array(258, ">i4"),
    "big-endian transposed": lambda: GRID.astype(">f4").T,
    "read-only": lambda: np.frombuffer(b"12345678", np.int32),
    "dates with NaT": lambda: np.array(["NaT", "2024-02-29"], "datetime64[D]"),
    "larger than what is compressed": lambda: np.arange(20_000.0),
    "larger than what is written directly": lambda: np.arange(300_000.0),
}
SCALARS: dict[str, object] = {
    **{repr(n): n for n in (0, -1, 2**63 - 1, -(2**63), True, False)},
    **{repr(x): x for x in (0.1, -0.0, 5e-324, float("nan"), float("-inf"))},
    **{repr(z): z for z in (1 - 2j, complex("nan-infj"))},
    **{
        f"np.{dtype}": values_of(dtype).reshape(-1)[1]
        for dtype in (*NUMPY_DTYPES, *ML_DTYPES)
        if not dtype.startswith(">")
    },
    "np.datetime64": np.datetime64("2024-02-29T12:00"),
    "np.timedelta64 NaT": np.timedelta64("NaT", "h"),
}
TEXTS: dict[str, object] = {
    "empty": "",
    "long": "xyz" * 100_000,
    "special": '\0\n\t"\\{}',
    "unicode": "größe \N{SNOWMAN} \N{PILE OF POO} \u202e",
    "lone surrogate": "\ud800",
    "looks like a path": "/a/../~b",
    "no bytes": b"",
    "bytes": bytes(range(256)),
    "many bytes": bytes(range(256)) * 10_000,
    "bytes with zeros at the end": b"a\0\0",
    "np.str_": np.str_("text"),
    "np.bytes_": np.bytes_(b"bytes\0"),
}
EMPTIES: dict[str, object] = {repr(value): value for value in (None, {}, [], ())}


def leaf_cases() -> list[Any]:
    lazy = {"jax": JAX_ARRAYS, "key": KEYS, "numpy": NUMPY_ARRAYS}
    ready = {"scalar": SCALARS, "text": TEXTS, "empty": EMPTIES}
    return [
        *(
            pytest.param(make, id=f"{group}: {name}")
            for group, makers in lazy.items()
            for name, make in makers.items()
        ),
        *(
            pytest.param(lambda value=value: value, id=f"{group}: {name}")
            for group, values in ready.items()
            for name, value in values.items()
        ),
    ]


@pytest.mark.parametrize("make", leaf_cases())
def test_leaf_comes_back_as_it_was(make: Callable[[], object], tmp_path: Path) -> None:
    leaf = make()
    ocp.save(tmp_path / "c", {"a": leaf})
    assert_same_tree(ocp.load(tmp_path / "c"), {"a": leaf})


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_leaves_together_come_back_as_they_were(
    layout: dict[str, bool], tmp_path: Path
) -> None:
    tree = {
        "jax": {name: make() for name, make in JAX_ARRAYS.items()},
        "keys": {name: make() for name, make in KEYS.items()},
        "numpy": {name: make() for name, make in NUMPY_ARRAYS.items()},
        "scalars": {name.replace(".", ""): value for name, value in SCALARS.items()},
        "texts": TEXTS,
        "empties": EMPTIES,
    }
    trees = checkpointer(**layout)
    trees.save(tmp_path / "c", tree)
    assert_same_tree(trees.restore(tmp_path / "c"), tree)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_leaf_of_a_target_decides_nothing_if_it_is_the_same(
    layout: dict[str, bool], tmp_path: Path
) -> None:
    tree = {
        "sharded": put(GRID, "x", x=8),
        "key": keys_of("rbg", (2,)),
        "array": GRID,
        "scalars": [1, True, 2.5, 3j, np.float32(4), ml_dtypes.bfloat16(5), np.bool_(True)],
        "texts": ["a", b"b", np.str_("c"), np.bytes_(b"d\0")],
    }
    checkpointer(**layout).save(tmp_path / "c", tree)
    assert_same_tree(ocp.load(tmp_path / "c", like=tree), tree)


def test_64_bit_jax_arrays_come_back_in_64_bit_mode(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        tree = {"f": jnp.arange(3.0), "i": jnp.arange(3), "c": jnp.ones(2, complex)}
        assert tree["f"].dtype == np.float64
        ocp.save(tmp_path / "c", tree)
        assert_same_tree(ocp.load(tmp_path / "c"), tree)


def test_64_bit_jax_array_is_refused_in_32_bit_mode(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        ocp.save(tmp_path / "c", {"f": jnp.arange(3.0)})
    with pytest.raises(
        UnsupportedLeafError, match=r"f: .*float64 need 64-bit mode.*jax_enable_x64"
    ):
        ocp.load(tmp_path / "c")
    loaded = ocp.load(tmp_path / "c", like={"f": np.zeros(3)})
    assert_same_leaf(loaded["f"], np.arange(3.0))


def test_loaded_numpy_array_may_be_written_to(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"a": GRID, "b": GRID, "z": np.arange(20_000.0)})
    loaded = ocp.load(tmp_path / "c")
    for array in loaded.values():
        array[:] = -1
    assert_same_leaf(ocp.load(tmp_path / "c")["a"], GRID)


@pytest.mark.parametrize("spec", [(), ("x",)], ids=["replicated", "sharded"])
def test_loaded_jax_array_may_be_donated(spec: tuple[str, ...], tmp_path: Path) -> None:
    array = put(np.zeros((64, 64), np.float32), *spec, x=8)
    ocp.save(tmp_path / "c", {"a": array})
    loaded = ocp.load(tmp_path / "c")["a"]
    result = jax.jit(lambda x: x + 1, donate_argnums=0)(loaded)
    assert all((np.asarray(shard.data) == 1).all() for shard in result.addressable_shards)


class Number(enum.IntEnum):
    THREE = 3


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Number.THREE, 3),
        (Text("a"), "a"),
        (np.array([[1, 2]]).view(np.matrix), np.array([[1, 2]])),
    ],
    ids=["enum", "str", "matrix"],
)
def test_subclass_comes_back_as_the_built_in_type(
    value: object, expected: object, tmp_path: Path
) -> None:
    ocp.save(tmp_path / "c", {"a": value})
    assert_same_tree(ocp.load(tmp_path / "c"), {"a": expected})


KEY_NAMES = [
    *("/", "a/b", "/a", "a/", "a//b", "~", "a~b", "~0", "~1/x", "a", "c", "0", "c/0", ""),
    *(
        "größe",
        "\N{SNOWMAN}",
        "with space",
        "%2F",
        "quote'\"",
        "back\\slash",
        "_METADATA",
        "zarr.json",
    ),
]


def test_keys_may_have_any_characters(tmp_path: Path) -> None:
    tree = {
        "text": {name: f"value of {name}" for name in KEY_NAMES},
        "array": {name: np.arange(i) for i, name in enumerate(KEY_NAMES)},
        "scalar": {name: i for i, name in enumerate(KEY_NAMES)},
        "_METADATA": 1,
    }
    ocp.save(tmp_path / "c", tree)
    assert_same_tree(ocp.load(tmp_path / "c"), tree)
    assert_same_tree(ocp.load(tmp_path / "c", like=tree), tree)


@pytest.mark.parametrize(
    "name", ["..", "a//b", "_METADATA", "manifest.ocdbt", "x" * 300, "a\\b", "\0"], ids=ascii
)
def test_key_that_is_no_directory_name_is_refused_where_arrays_are_directories(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(
        NameCollisionError, match=r"cannot be stored under its name.*use_ocdbt=True"
    ):
        checkpointer(use_ocdbt=False).save(tmp_path / "c", {name: GRID, "other": 1})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("use_zarr3", [True, False], ids=["zarr3", "zarr2"])
@pytest.mark.parametrize("name", ["b/c", "b/c/d", "b/0", "b/0.0", "a/b/c/0", "b/zarr.json", "c"])
def test_a_key_named_like_a_chunk_is_saved_where_no_leaf_is_above_it(
    name: str, use_zarr3: bool, tmp_path: Path
) -> None:
    tree = {name: GRID, "b.x": np.arange(3), "b/.zarray": 1}
    checkpointer(use_ocdbt=False, use_zarr3=use_zarr3).save(tmp_path / "c", tree)
    assert_same_tree(ocp.load(tmp_path / "c"), tree)
    assert ocp.verify(tmp_path / "c").is_intact


CHUNK_NAMES = [
    *(("b", f"b/{name}", True) for name in ("c", "c/d", "zarr.json", ".zarray")),
    *(("b", f"b/{name}", False) for name in ("0", "0.0", "12/x", "zarr.json", ".zarray")),
    *(("a/b", "a/b/c", True), ("a/b", "a/b/0", False), ("", "c", True), ("", "0", False)),
]


@pytest.mark.parametrize(("outer", "name", "use_zarr3"), CHUNK_NAMES)
def test_a_key_that_another_leaf_has_for_a_chunk_is_refused(
    outer: str, name: str, use_zarr3: bool, tmp_path: Path
) -> None:
    tree = {name: GRID, outer: np.arange(3)}
    with pytest.raises(NameCollisionError, match=r"a file in the directory of the leaf .*Rename"):
        checkpointer(use_ocdbt=False, use_zarr3=use_zarr3).save(tmp_path / "c", tree)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "use_zarr3"), [("b/c", False), ("b/0", True), ("b/x/c", True)])
def test_a_key_below_a_leaf_that_has_no_such_file_is_saved(
    name: str, use_zarr3: bool, tmp_path: Path
) -> None:
    tree = {name: GRID, "b": np.arange(3)}
    checkpointer(use_ocdbt=False, use_zarr3=use_zarr3).save(tmp_path / "c", tree)
    assert_same_tree(ocp.load(tmp_path / "c"), tree)


def test_slashes_in_keys_make_directories_where_arrays_are_directories(tmp_path: Path) -> None:
    tree = {"a/b": np.arange(3), "a": np.arange(4), "a/b/d": "text", "d": 1, "größe": 1, "": 2}
    checkpointer(use_ocdbt=False).save(tmp_path / "c", tree)
    assert_same_tree(ocp.load(tmp_path / "c"), tree)


def masked() -> object:
    return np.ma.masked_array([1, 2], mask=[True, False])


def deleted() -> jax.Array:
    array = jnp.zeros(3)
    array.delete()
    return array


def deleted_key() -> jax.Array:
    key = jax.random.key(0)
    key.delete()
    return key


def nameless_key() -> jax.Array:
    impl = jax.extend.random.define_prng_impl(
        key_shape=(1,),
        seed=lambda seed: jnp.zeros(1, jnp.uint32),  # noqa: ARG005 - JAX's interface
        split=lambda key, shape: jnp.zeros((*shape, 1), jnp.uint32),  # noqa: ARG005 - JAX's interface
        random_bits=lambda key, width, shape: jnp.zeros(shape, jnp.uint32),  # noqa: ARG005 - JAX's interface
        fold_in=lambda key, data: key,  # noqa: ARG005 - JAX's interface
    )
    return jax.random.wrap_key_data(jnp.zeros(1, jnp.uint32), impl=impl)


UNSUPPORTED: list[tuple[str, Callable[[], object], str]] = [
    ("object", object, r"no type handler accepts builtins\.object"),
    ("fraction", lambda: fractions.Fraction(1, 2), r"accepts fractions\.Fraction"),
    ("bytearray", lambda: bytearray(b"x"), r"accepts builtins\.bytearray"),
    ("function", lambda: len, "accepts builtins.builtin_function"),
    (
        "shape",
        lambda: jax.ShapeDtypeStruct((1,), np.float32),
        "a ShapeDtypeStruct has no values; save the array",
    ),
    ("placeholder", lambda: ocp.PLACEHOLDER, "a PLACEHOLDER stands for no value"),
    ("large int", lambda: 2**63, "the integer does not fit into 64 bits"),
    ("small int", lambda: -(2**63) - 1, "the integer does not fit into 64 bits"),
    ("strings", lambda: np.array(["a"]), "dtype <U1 cannot be stored"),
    ("objects", lambda: np.array([None]), "dtype object cannot be stored"),
    ("records", lambda: np.zeros(1, "i4,f4"), "dtype .* cannot be stored"),
    ("long double", lambda: np.zeros(1, np.longdouble), "dtype float128 cannot be stored"),
    ("long double scalar", lambda: np.longdouble(1), "dtype float128 cannot be stored"),
    ("masked", masked, "its mask would be lost"),
    ("deleted", deleted, "has been deleted or donated"),
    ("deleted key", deleted_key, "has been deleted or donated"),
    ("key of no name", nameless_key, "PRNG implementation .* is not registered"),
]


@pytest.mark.parametrize(
    ("make", "message"), [pytest.param(make, text, id=name) for name, make, text in UNSUPPORTED]
)
def test_unsupported_leaf_is_refused_with_its_path_and_why(
    make: Callable[[], object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedLeafError, match=rf"bad/1: .*{message}"):
        ocp.save(tmp_path / "c", {"bad": [1, make()]})
    assert not list(tmp_path.iterdir())


def test_one_error_lists_all_unsupported_leaves_and_nothing_is_written(tmp_path: Path) -> None:
    tree = {name: make() for name, make, _ in UNSUPPORTED} | {"fine": 1}
    with pytest.raises(UnsupportedLeafError, match="register_type_handler") as caught:
        ocp.save(tmp_path / "c", tree)
    assert f"{len(UNSUPPORTED)} of {len(tree)} leaves cannot be saved" in str(caught.value)
    assert sorted(caught.value.paths) == sorted(name for name, _, _ in UNSUPPORTED)
    assert not list(tmp_path.iterdir())


def test_tracer_is_refused(tmp_path: Path) -> None:
    def step(x: jax.Array) -> jax.Array:
        ocp.save(tmp_path / "c", {"x": x})
        return x

    with pytest.raises(UnsupportedLeafError, match="x: it is a tracer; save outside of jit"):
        jax.jit(step)(1.0)
    assert not list(tmp_path.iterdir())


def test_name_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="cannot be stored under its name: it is not valid Unicode"
    ):
        ocp.save(tmp_path / "c", {"\ud800": 1})
