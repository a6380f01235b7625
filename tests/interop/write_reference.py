"""Writes reference checkpoints with whichever Orbax release is installed.

Usage: `python write_reference.py OUT_DIR`

Every on-disk layout the installed release can produce is written below `OUT_DIR`, next to one
`expected.json` that says what the same release restores from it without a target. The script runs
under releases years apart, so it picks every call by feature detection, never by version number,
and it imports nothing but the standard library, NumPy, JAX and Orbax. The README beside it
describes the encoding.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

# JAX reads these when it is first imported; eight CPU devices are enough for real shardings.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

# The releases share no common typed surface, so Orbax is deliberately untyped here.
ocp: Any = importlib.import_module("orbax.checkpoint")

Tree = Any
Json = dict[str, Any]

STEP = 7


class UnavailableError(Exception):
    """The installed release has no such class, option or leaf type."""


# --------------------------------------------------------------------------------------------------
# Deterministic values
# --------------------------------------------------------------------------------------------------


def ramp(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Returns a small-period pattern: never constant, but cheap to store compressed.

    Quarter steps between -2.75 and 2.75 are exact in every float type down to float8_e4m3fn.
    """
    index = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(tuple(shape))
    wave = index * 7 % 23
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return wave % 3 == 0
    if kind.kind == "c":
        return (((wave - 11) + 1j * (wave % 5)) / 4).astype(kind)
    if kind.kind == "u":
        return wave.astype(kind)
    if kind.kind == "i":
        return (wave - 11).astype(kind)
    if kind.name.startswith(("int", "uint")):  # The sub-byte integers of ml_dtypes.
        return (wave % 4 - (0 if kind.name.startswith("u") else 2)).astype(kind)
    return ((wave - 11) / 4).astype(kind)


def noise(shape: Sequence[int]) -> np.ndarray:
    """Returns float32 values that hardly compress."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(tuple(shape))
    return ((index * 2654435761 % 2**32) >> 12).astype(np.float32)


def specials() -> np.ndarray:
    """Returns float32 values whose bits a careless reader would change."""
    tiny = np.finfo(np.float32).tiny
    return np.array([np.nan, np.inf, -np.inf, -0.0, tiny / 4, tiny, 3e38], np.float32)


def x64_array(dtype: Any) -> jax.Array:
    """Returns a 64-bit JAX array, which outlives the switch that allowed it."""
    # At the top level of some releases the name is a flag and not a context manager.
    found = getattr(jax, "enable_x64", None)
    if not callable(found):
        found = importlib.import_module("jax.experimental").enable_x64
    switch = cast("Callable[[bool], contextlib.AbstractContextManager[None]]", found)
    with switch(True):
        return jnp.asarray(ramp((2, 3), dtype))


# --------------------------------------------------------------------------------------------------
# Candidate trees: each top-level entry is kept or dropped on its own
# --------------------------------------------------------------------------------------------------

LeafTable = Mapping[str, Callable[[], Any]]

_JAX_DTYPES = (
    *("float32", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "float4_e2m1fn"),
    *("int2", "int4", "int8", "int16", "int32", "uint2", "uint4", "uint8", "uint16", "uint32"),
    *("bool", "complex64"),
)
_NUMPY_DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int4"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bool", "complex64", "complex128"),
)
_SCALAR_DTYPES = ("float32", "float64", "bfloat16", "int32", "int64", "uint8", "bool", "complex64")


def dtype_named(name: str) -> np.dtype[Any]:
    """Returns the dtype called `name`, looking in NumPy first and then in JAX."""
    try:
        return np.dtype(name)
    except TypeError:
        if not hasattr(jnp, name):
            raise UnavailableError(f"this jax has no dtype {name}") from None
        return np.dtype(getattr(jnp, name))


def _jax_of(name: str, shape: Sequence[int]) -> Callable[[], jax.Array]:
    return lambda: jnp.asarray(ramp(shape, dtype_named(name)))


def _numpy_of(name: str, shape: Sequence[int]) -> Callable[[], np.ndarray]:
    return lambda: ramp(shape, dtype_named(name))


def _numpy_scalar_of(name: str) -> Callable[[], np.generic]:
    return lambda: ramp((4,), dtype_named(name))[3]


def _typed_key(impl: str, split: int = 0) -> Callable[[], jax.Array]:
    def make() -> jax.Array:
        key = jax.random.key(42, impl=impl)
        return jax.random.split(key, split) if split else key

    return make


def array_leaves() -> LeafTable:
    """Returns JAX arrays: every dtype, and the sizes that are stored differently."""
    table: dict[str, Callable[[], Any]] = {
        f"jax_{name}": _jax_of(name, (2, 3)) for name in _JAX_DTYPES
    }
    table |= {
        "jax_0d_float32": _jax_of("float32", ()),
        "jax_0d_int32": _jax_of("int32", ()),
        "jax_0d_bfloat16": _jax_of("bfloat16", ()),
        "jax_0d_bool": _jax_of("bool", ()),
        "jax_no_elements": _jax_of("float32", (0, 3)),
        "jax_specials": lambda: jnp.asarray(specials()),
        # OCDBT keeps values of up to 1024 bytes inside its B-tree nodes.
        "jax_1600_bytes": _jax_of("float32", (20, 20)),
        "jax_zeros": lambda: jnp.zeros((16, 24), jnp.float32),
        "jax_weak": lambda: jnp.asarray(1.5),
        "jax_float64": lambda: x64_array(np.float64),
        "jax_int64": lambda: x64_array(np.int64),
    }
    return table


def other_leaves() -> LeafTable:
    """Returns every kind of leaf that is not a plain JAX array."""
    table: dict[str, Callable[[], Any]] = {
        f"np_{name}": _numpy_of(name, (2, 3)) for name in _NUMPY_DTYPES
    }
    table |= {f"npscalar_{name}": _numpy_scalar_of(name) for name in _SCALAR_DTYPES}
    table |= {
        "np_0d_int64": lambda: np.array(2**40 + 1, np.int64),
        "np_no_elements": _numpy_of("int64", (3, 0)),
        "np_big_endian": lambda: ramp((2, 3), np.float32).astype(">f4"),
        "np_fortran": lambda: np.asfortranarray(ramp((4, 3), np.float64)),
        "np_strided": lambda: ramp((4, 6), np.int32)[::2, ::3],
        "np_1800_bytes": _numpy_of("float64", (15, 15)),
        "np_zeros": lambda: np.zeros((5, 5), np.float64),
        "np_text": lambda: np.array(["ab", "c"]),
        "py_int": lambda: 41,
        "py_negative_int": lambda: -3,
        "py_int_40_bits": lambda: 2**40 + 1,
        "py_float": lambda: 0.1,
        "py_true": lambda: True,
        "py_false": lambda: False,
        "py_complex": lambda: 1.5 - 2j,
        "py_str": lambda: "orbit",
        "py_str_unicode": lambda: 'na\u00efve "\u2192" \u65e5\u672c\n',
        "py_str_empty": lambda: "",
        "py_bytes": lambda: b"\x00\xff",
        "none": lambda: None,
        "empty_dict": dict,
        "empty_list": list,
        "empty_tuple": tuple,
        "raw_prng_key": lambda: jax.random.PRNGKey(42),
        "key_threefry": _typed_key("threefry2x32"),
        "key_threefry_batch": _typed_key("threefry2x32", 2),
        "key_rbg": _typed_key("rbg"),
        "key_unsafe_rbg": _typed_key("unsafe_rbg"),
    }
    return table


def all_leaves() -> LeafTable:
    """Returns every leaf kind."""
    return {**array_leaves(), **other_leaves()}


# More than 16 KiB, like the one in `containers`; not in the longest table, so that the packed
# files stay small.
_large = _jax_of("float32", (64, 66))


def few_leaves() -> LeafTable:
    """Returns a sample for the options that treat every leaf alike."""
    names = ("jax_float32", "jax_bfloat16", "jax_0d_int32", "jax_zeros", "np_float64", "py_int")
    table = all_leaves()
    return {**{name: table[name] for name in (*names, "none")}, "jax_16896_bytes": _large}


def kinds_of_leaves() -> LeafTable:
    """Returns every kind of leaf, but only a few dtypes of JAX arrays."""
    return {**few_leaves(), **other_leaves()}


Point = namedtuple("Point", ["x", "y"])


class AdamState(NamedTuple):
    """Has the shape of an optimizer state: a counter and two copies of the parameters."""

    count: Any
    mu: Any
    nu: Any


class EmptyState(NamedTuple):
    """A named tuple without fields, as gradient transformations without state use."""


def _params(scale: float = 1.0) -> Tree:
    return {
        "dense": {
            "kernel": jnp.asarray(ramp((6, 4), np.float32) * np.float32(scale)),
            "bias": jnp.asarray(ramp((4,), dtype_named("bfloat16"))),
        }
    }


def containers() -> LeafTable:
    """Returns one entry for each way of nesting."""
    one = _jax_of("float32", (3,))
    two = _numpy_of("int32", (2, 2))
    return {
        "anchor": one,
        "nested_dict": lambda: {"a": {"b": {"c": one()}}, "d": two()},
        "list": lambda: [one(), two(), [one()]],
        "long_list": lambda: [jnp.asarray(i, jnp.int32) for i in range(12)],
        "tuple": lambda: (one(), (two(),)),
        "namedtuple": lambda: Point(x=one(), y=two()),
        "optimizer": lambda: (AdamState(jnp.int32(3), _params(0.5), _params(2)), EmptyState()),
        "empty_namedtuple": EmptyState,
        "int_keys": lambda: {0: one(), 1: two(), 10: one()},
        "numeric_str_keys": lambda: {"0": one(), "1": two()},
        "none_in_list": lambda: [one(), None, two()],
        "none_in_dict": lambda: {"none": None, "array": one()},
        "empties_in_dict": lambda: {"d": {}, "l": [], "t": (), "array": one()},
        "empties_in_list": lambda: [{}, [], (), one()],
        "nested_empty": lambda: {"a": {"b": {}}},
        # Compressed, too, it is longer than what OCDBT keeps inside its nodes.
        "large": lambda: jnp.asarray(np.concatenate([noise((8, 66)), ramp((56, 66), np.float32)])),
    }


def rich_containers() -> LeafTable:
    """Returns the containers that plain metadata turns into others."""
    table = containers()
    names = ("anchor", "tuple", "namedtuple", "optimizer", "empty_namedtuple", "empties_in_dict")
    return {name: table[name] for name in (*names, "int_keys", "list")}


def odd_keys() -> LeafTable:
    """Returns entries whose names mean something to a path or to Orbax."""
    names = ("a.b", ".lead", "a/b", "~", "a b", "%2F", "0", "\u00fcn\u00ef", "a\\b", "x=1,y", "d'q")
    table: dict[str, Callable[[], Any]] = {name: _jax_of("float32", (3,)) for name in names}
    table |= {
        "plain": _jax_of("float32", (3,)),
        # Names outside every inner node that the other entries make.
        "inner": lambda: {"c.d": ramp((2,), np.int32), "e": {"f/g": ramp((2,), np.int32)}},
        "": _jax_of("float32", (3,)),
    }
    return table


def _mesh(**axes: int) -> jax.sharding.Mesh:
    size = int(np.prod(list(axes.values())))
    devices = np.array(jax.devices()[:size]).reshape(tuple(axes.values()))
    return jax.sharding.Mesh(devices, tuple(axes))


def _placed(
    shape: Sequence[int], dtype: str, mesh: jax.sharding.Mesh, *spec: Any
) -> Callable[[], jax.Array]:
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    return lambda: jax.device_put(ramp(shape, dtype_named(dtype)), sharding)


def _positional() -> jax.Array:
    make = getattr(jax.sharding, "PositionalSharding", None)
    if make is None:
        raise UnavailableError("this jax has no PositionalSharding")
    return jax.device_put(ramp((8, 4), np.float32), make(jax.devices()).reshape(8, 1))


def sharded() -> LeafTable:
    """Returns arrays that are split, replicated and placed in each usual way."""
    line, grid = _mesh(d=8), _mesh(x=4, y=2)
    return {
        "split_8": _placed((16, 24), "float32", line, "d"),
        "split_8_second_axis": _placed((3, 8), "int32", line, None, "d"),
        "split_both_axes": _placed((8, 12), "int32", grid, "x", "y"),
        "split_one_axis_by_two": _placed((16, 3), "bfloat16", grid, ("x", "y")),
        "partly_replicated": _placed((8, 6), "bfloat16", grid, "x"),
        "partly_replicated_y": _placed((5, 4), "float32", grid, None, "y"),
        "replicated": _placed((5,), "float32", grid),
        "replicated_1600_bytes": _placed((20, 20), "float32", grid),
        "replicated_0d": _placed((), "int32", grid),
        "split_zeros": lambda: jax.device_put(
            np.zeros((16, 4), np.float32),
            jax.sharding.NamedSharding(line, jax.sharding.PartitionSpec("d")),
        ),
        "split_16896_bytes": _placed((64, 66), "float32", grid, "x", "y"),
        "device_3": lambda: jax.device_put(ramp((4,), np.float32), jax.devices()[3]),
    }


def unplaced() -> LeafTable:
    """Returns arrays whose sharding some releases cannot record or cannot rebuild."""
    return {
        "anchor": _jax_of("float32", (3,)),
        "subset_mesh": _placed((4, 4), "float32", _mesh(z=2), "z"),
        "positional": _positional,
    }


def few_sharded() -> LeafTable:
    """Returns a sample of `sharded`."""
    table = sharded()
    return {name: table[name] for name in ("split_8", "partly_replicated", "replicated")}


def chunked() -> LeafTable:
    """Returns arrays for the variants that split what one device holds into several chunks."""
    return {
        "plain_3072_bytes": _jax_of("float32", (32, 24)),
        "three_axes": _jax_of("int32", (8, 6, 10)),
        "odd_shape": _jax_of("float32", (30, 7, 3)),
        "bfloat16": _jax_of("bfloat16", (16, 48)),
        "numpy": _numpy_of("float64", (12, 10)),
        "partly_replicated": _placed((32, 32), "float32", _mesh(x=4, y=2), "x"),
    }


def training_state() -> LeafTable:
    """Returns a small train state, for the layouts that differ only above the tree."""
    return {
        "params": _params,
        "opt_state": lambda: (AdamState(jnp.int32(3), _params(0.5), _params(2)), EmptyState()),
        "step": lambda: STEP,
    }


def one_array() -> LeafTable:
    """Returns the least that makes a checkpoint."""
    return {"kernel": _jax_of("float32", (4, 3))}


# --------------------------------------------------------------------------------------------------
# expected.json
# --------------------------------------------------------------------------------------------------


def _is_typed_key(value: Any) -> bool:
    extended = getattr(jax.dtypes, "prng_key", None)
    return (
        isinstance(value, jax.Array)
        and extended is not None
        and jnp.issubdtype(value.dtype, extended)
    )


def encode_array(value: Any) -> Json:
    """Encodes an array or NumPy scalar."""
    kind = (
        "jax.Array"
        if isinstance(value, jax.Array)
        else ("np.ndarray" if isinstance(value, np.ndarray) else "np.generic")
    )
    host = np.asarray(value)
    # `>` has to be swapped; ml_dtypes report `V` or a native order and must stay as they are.
    if host.dtype.byteorder == ">":
        host = host.astype(host.dtype.newbyteorder("<"))
    name = host.dtype.name
    if name in ("int2", "int4", "uint2", "uint4"):
        # Releases disagree about the unused upper bits, so they are made the sign's.
        host = host.astype(np.uint8 if name.startswith("u") else np.int8)
    return {
        "dtype": name,
        "shape": list(host.shape),
        "data": base64.b64encode(host.tobytes("C")).decode(),
        "kind": kind,
    }


def encode(node: Tree) -> Json:
    """Encodes a restored tree as plain JSON."""
    if node is None:
        return {"none": True}
    if _is_typed_key(node):
        impl = str(jax.random.key_impl(node))
        return {"prng": impl, "data": encode_array(np.asarray(jax.random.key_data(node)))}
    if isinstance(node, (jax.Array, np.ndarray, np.generic)):
        return encode_array(node)
    if isinstance(node, (bool, int, float, str, complex, bytes)):
        return _encode_python(node)
    return _encode_container(node)


def _encode_python(value: complex | str | bytes) -> Json:
    plain_value: Any = value
    if isinstance(value, complex):
        plain_value = [value.real, value.imag]
    elif isinstance(value, bytes):
        plain_value = base64.b64encode(value).decode()
    return {"py": plain_value, "type": type(value).__name__}


def _field_names(node: Tree) -> Sequence[str] | None:
    """Returns the field names of a named tuple, and None for everything else."""
    return getattr(node, "_fields", None) if isinstance(node, tuple) else None


def _encode_container(node: Tree) -> Json:
    names = _field_names(node)
    if names is not None:
        fields = {name: encode(getattr(node, name)) for name in names}
        return {"namedtuple": type(node).__name__, "fields": fields}
    if isinstance(node, Mapping):
        return _encode_mapping(node)
    if isinstance(node, (list, tuple)):
        name = "list" if isinstance(node, list) else "tuple"
        return {name: [encode(value) for value in node]} if node else {"empty": name}
    raise TypeError(f"restored an object of {type(node)}")


def _encode_mapping(node: Mapping[Any, Tree]) -> Json:
    if not node:
        return {"empty": "dict"}
    if all(isinstance(key, str) for key in node):
        return {"dict": {key: encode(value) for key, value in node.items()}}
    return {"items": [[encode(key), encode(value)] for key, value in node.items()]}


def describe(encoded: Json) -> str:
    """Names what an encoded node is, without its values."""
    if "kind" in encoded:
        return f"{encoded['kind']} {encoded['dtype']}{encoded['shape']}"
    for key in ("type", "prng", "empty", "namedtuple"):
        if key in encoded:
            return f"{key} {encoded[key]}"
    return next(iter(encoded))


def _children(encoded: Json) -> dict[str, Json] | None:
    """Returns what a container holds, keyed the way Orbax names it, or None for a leaf."""
    if "dict" in encoded:
        return encoded["dict"]
    if "fields" in encoded:
        return encoded["fields"]
    if "items" in encoded:
        return {str(key.get("py")): value for key, value in encoded["items"]}
    for name in ("list", "tuple"):
        if name in encoded:
            return {str(index): value for index, value in enumerate(encoded[name])}
    return None


def differences(saved: Json, restored: Json, where: str = "") -> Iterator[str]:
    """Yields one line for each way in which `restored` is not what was saved."""
    mine, theirs = _children(saved), _children(restored)
    if describe(saved) != describe(restored):
        yield f"{where}: {describe(saved)} -> {describe(restored)}"
    elif mine is None and saved != restored:
        yield f"{where}: {describe(saved)} with other values"
    if mine is not None and theirs is not None:
        if mine.keys() != theirs.keys():
            yield f"{where}: keys {sorted(mine)} -> {sorted(theirs)}"
        for key in mine.keys() & theirs.keys():
            yield from differences(mine[key], theirs[key], f"{where}.{key}".lstrip("."))


def describe_sharding(array: jax.Array) -> Json:
    """Describes where an array lives in terms that any JAX release can rebuild."""
    sharding: Any = array.sharding
    out: Json = {"type": type(sharding).__name__}
    if isinstance(sharding, jax.sharding.NamedSharding):
        spec = [list(axis) if isinstance(axis, tuple) else axis for axis in sharding.spec]
        out |= {"mesh": dict(sharding.mesh.shape), "spec": spec}
    out["devices"] = sorted(device.id for device in sharding.device_set)
    out["shard_shape"] = list(sharding.shard_shape(array.shape))
    return out


def shardings(tree: Tree) -> Json:
    """Describes the sharding of every top-level array that is not on the first device alone."""
    found: Json = {}
    for name, value in tree.items() if isinstance(tree, Mapping) else ():
        if isinstance(value, jax.Array) and not _is_typed_key(value):
            described = describe_sharding(value)
            if described["devices"] != [0]:
                found[name] = described
    return found


# --------------------------------------------------------------------------------------------------
# Layouts: how to save and restore a tree
# --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way to write a checkpoint.

    Attributes:
        written_by: The class and options, for people.
        save: Writes a tree to a directory that does not exist yet.
        restore: Restores it with no target.
        inside: The path below that directory which `load` should be given.
        must_contain: A glob that proves the layout is what its name says.
        second: Another way to restore, with its description, for what `restore` cannot.
        whole_tree: Whether the restored object is the tree that was saved, and not parts of it.
    """

    written_by: str
    save: Callable[[Path, Tree], None]
    restore: Callable[[Path], Tree]
    inside: str = ""
    must_contain: str = "*"
    second: tuple[str, Callable[[Path, Tree], Tree]] | None = None
    whole_tree: bool = True

    def read(self, path: Path, tree: Tree) -> tuple[Tree, str | None]:
        """Returns what is restored, and how if it took the second way."""
        try:
            return self.restore(path), None
        except Exception:
            if self.second is None:
                raise
        text, restore = self.second
        return restore(path, tree), text


def accepts(function: Any, *names: str) -> bool:
    """Whether a callable takes all the named parameters."""
    try:
        return set(names) <= set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False


def require(owner: Any, name: str) -> Any:
    """Returns an attribute, or says that this release lacks it."""
    if not hasattr(owner, name):
        raise UnavailableError(f"this release has no {getattr(owner, '__name__', owner)}.{name}")
    return getattr(owner, name)


def build(function: Any, **options: Any) -> Any:
    """Calls a constructor, turning an option it does not know into `UnavailableError`."""
    unknown = [name for name in options if not accepts(function, name)]
    if unknown:
        raise UnavailableError(f"{function.__name__} takes no {', '.join(unknown)}")
    return function(**options)


def call_text(function: Any, **options: Any) -> str:
    """Returns `Name(option=value, ...)`."""
    inner = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return f"{function.__name__}({inner})"


def finish(checkpointer: Any) -> None:
    """Waits for a checkpointer that may be asynchronous in this release."""
    for method in ("wait_until_finished", "close"):
        if hasattr(checkpointer, method):
            getattr(checkpointer, method)()


@contextlib.contextmanager
def early_ocdbt() -> Iterator[None]:
    """Switches the leaf handlers to OCDBT in releases where the tree handler cannot.

    Those releases ask for a TensorStore context, normally one with a coordinator that several
    processes share; one process writes the same files without it.
    """
    type_handlers = ocp.type_handlers
    if not accepts(getattr(type_handlers, "ArrayHandler", None), "use_ocdbt"):
        yield
        return
    tensorstore = importlib.import_module("tensorstore")
    context = tensorstore.Context({"cache_pool#ocdbt": {"total_bytes_limit": 1_000_000}})
    registry = type_handlers._TYPE_REGISTRY
    before = list(registry)
    try:
        type_handlers.register_standard_handlers_with_options(use_ocdbt=True, ts_context=context)
        yield
    finally:
        registry[:] = before


def pytree(
    *,
    save_args: Callable[[Tree], Tree] | None = None,
    save_options: Json | None = None,
    **options: Any,
) -> Layout:
    """Returns `Checkpointer(PyTreeCheckpointHandler(**options))`."""
    handler_class = ocp.PyTreeCheckpointHandler
    build(handler_class, **options)  # Fails here rather than at the first save.
    guard = early_ocdbt if options.get("use_ocdbt") else contextlib.nullcontext

    def save(path: Path, tree: Tree) -> None:
        extra = dict(save_options or {})
        if save_args is not None:
            extra["save_args"] = save_args(tree)
        with guard():
            checkpointer = ocp.Checkpointer(handler_class(**options))
            checkpointer.save(path, tree, **extra)
            finish(checkpointer)

    def restore(path: Path) -> Tree:
        with guard():
            return ocp.Checkpointer(handler_class(**options)).restore(path)

    text = f"Checkpointer({call_text(handler_class, **options)})"
    if save_options:
        text += f", save(..., {', '.join(f'{k}={v!r}' for k, v in save_options.items())})"
    return Layout(text, save, restore)


def plain(tree: Tree) -> Tree:
    """Returns `tree` with the containers that a restore without a target makes of its own."""
    names = _field_names(tree)
    if names is not None:
        return {name: plain(getattr(tree, name)) for name in names} or None
    if isinstance(tree, Mapping):
        return {str(key): plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [plain(value) for value in tree]
    return tree


def with_numpy_restore(layout: Layout) -> Layout:
    """Returns `layout` with a second way to restore, which asks for no sharding."""

    def restore(path: Path, tree: Tree) -> Tree:
        as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
        restore_args = jax.tree_util.tree_map(lambda _: as_numpy, plain(tree))
        checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
        return checkpointer.restore(path, restore_args=restore_args)

    text = "restore_args=RestoreArgs(restore_type=np.ndarray) for every leaf"
    return dataclasses.replace(layout, second=(text, restore))


def unplaced_layout(**options: Any) -> Layout:
    """Returns `pytree(**options)` for arrays that may come back only as NumPy arrays."""
    return with_numpy_restore(pytree(**options))


def uniform_save_args(**options: Any) -> Callable[[Tree], Tree]:
    """Returns a function that gives every leaf the same `SaveArgs`."""
    args = build(ocp.SaveArgs, **options)
    return lambda tree: jax.tree_util.tree_map(lambda _: args, tree)


def pytree_with_save_args(leaf_options: Json, **options: Any) -> Layout:
    """Returns `pytree(**options)` with the same `SaveArgs` for every leaf."""
    layout = pytree(save_args=uniform_save_args(**leaf_options), **options)
    text = f"{layout.written_by}, {call_text(ocp.SaveArgs, **leaf_options)} for every leaf"
    return dataclasses.replace(layout, written_by=text)


def chunk_shapes(**options: Any) -> Layout:
    """Returns a layout whose write chunks are halves and read chunks quarters of each shard."""
    build(ocp.SaveArgs, write_chunk_shape=(1,), read_chunk_shape=(1,))

    def save_args(tree: Tree) -> Tree:
        return jax.tree_util.tree_map(_halved, tree)

    layout = pytree(save_args=save_args, **options)
    text = f"{layout.written_by}, SaveArgs(write_chunk_shape=half, read_chunk_shape=quarter)"
    return dataclasses.replace(layout, written_by=text)


def _halved(leaf: Any) -> Any:
    shape = leaf.shape
    if isinstance(leaf, jax.Array):
        shape = leaf.sharding.shard_shape(leaf.shape)
    write = (shape[0] // 2, *shape[1:]) if shape and shape[0] % 4 == 0 else tuple(shape)
    read = (write[0] // 2, *write[1:]) if write != tuple(shape) else write
    return ocp.SaveArgs(write_chunk_shape=write, read_chunk_shape=read)


def aggregate(every: int, **options: Any) -> Layout:
    """Returns a layout that puts every leaf, or about one in `every`, into the msgpack file."""

    def save_args(tree: Tree) -> Tree:
        def of_leaf(path: Any, _: Any) -> Any:
            # Chosen by name, so that leaving out one leaf does not change another's place.
            name = jax.tree_util.keystr(path).encode()
            return ocp.SaveArgs(aggregate=zlib.crc32(name) % every == 0)

        return jax.tree_util.tree_map_with_path(of_leaf, tree)

    layout = pytree(save_args=save_args, **options)
    which = "every leaf" if every == 1 else f"about one leaf in {every}"
    text = f"{layout.written_by}, SaveArgs(aggregate=True) for {which}"
    return dataclasses.replace(layout, written_by=text, must_contain="checkpoint")


def rich_types(**options: Any) -> Layout:
    """Returns a layout whose metadata records tuples and named tuples."""
    tree_metadata = importlib.import_module("orbax.checkpoint._src.metadata.tree")
    metadata_options = require(tree_metadata, "PyTreeMetadataOptions")(support_rich_types=True)
    layout = pytree(pytree_metadata_options=metadata_options, **options)
    # There were releases that could write these types before they could restore them.
    poorer = pytree(**options)
    second = ("support_rich_types=False", lambda path, _: poorer.restore(path))
    return dataclasses.replace(layout, second=second)


def array_handler_options(**options: Any) -> Layout:
    """Returns the default layout written by an array handler with other options."""
    type_handlers = ocp.type_handlers
    handler = build(require(type_handlers, "ArrayHandler"), **options)
    registry = require(type_handlers, "create_type_handler_registry")(
        (np.ndarray, type_handlers.NumpyHandler()), (jax.Array, handler)
    )
    layout = with_numpy_restore(pytree(type_handler_registry=registry))
    text = f"Checkpointer(PyTreeCheckpointHandler(...)), {call_text(type(handler), **options)}"
    return dataclasses.replace(layout, written_by=text)


def standard(**options: Any) -> Layout:
    """Returns `StandardCheckpointer`, or the same over a handler with options."""
    checkpointer_class = require(ocp, "StandardCheckpointer")
    handler_class = ocp.StandardCheckpointHandler
    build(handler_class, **options)

    def make() -> Any:
        return ocp.Checkpointer(handler_class(**options)) if options else checkpointer_class()

    def save(path: Path, tree: Tree) -> None:
        checkpointer = make()
        checkpointer.save(path, tree)
        finish(checkpointer)

    text = call_text(handler_class if options else checkpointer_class, **options)
    return Layout(text, save, lambda path: make().restore(path))


def single_array() -> Layout:
    """Returns a layout that holds one array and no tree."""
    handler_class = require(ocp, "ArrayCheckpointHandler")

    def save(path: Path, tree: Tree) -> None:
        ocp.Checkpointer(handler_class()).save(path, tree["kernel"])

    text = "Checkpointer(ArrayCheckpointHandler())"

    def restore(path: Path) -> Tree:
        return ocp.Checkpointer(handler_class()).restore(path)

    return Layout(text, save, restore, whole_tree=False)


# CheckpointManager ------------------------------------------------------------


def _step_name(path: Path) -> str:
    steps = [entry.name for entry in path.iterdir() if entry.is_dir()]
    if len(steps) != 1:
        raise RuntimeError(f"expected one step directory, found {steps}")
    return steps[0]


def _takes_args() -> bool:
    return accepts(ocp.CheckpointManager.save, "args")


def manager_single(step_name: str = str(STEP), **options: Any) -> Layout:
    """Returns a manager step with one unnamed item."""
    manager_options = build(ocp.CheckpointManagerOptions, **options)
    modern = _takes_args()

    def make(path: Path) -> Any:
        checkpointers = () if modern else (ocp.Checkpointer(ocp.PyTreeCheckpointHandler()),)
        return ocp.CheckpointManager(path, *checkpointers, options=manager_options)

    def save(path: Path, tree: Tree) -> None:
        manager = make(path)
        if modern:
            manager.save(STEP, args=ocp.args.StandardSave(tree))
        else:
            manager.save(STEP, tree)
        finish(manager)

    def restore(path: Path) -> Tree:
        manager = make(path)
        if modern:
            return manager.restore(STEP, args=ocp.args.StandardRestore())
        return manager.restore(STEP)

    inner = "args=StandardSave(tree)" if modern else "tree"
    text = f"{call_text(ocp.CheckpointManager, **options)}.save({STEP}, {inner})"
    return Layout(text, save, restore, inside=step_name)


CONFIG: Json = {"name": "orbit", "depth": 3, "rates": [0.1, 0.2], "nested": {"on": True}}
METRICS: Json = {"loss": 0.25}


def manager_items(*, random_keys: bool = False) -> Layout:
    """Returns a manager step with a state, a JSON item and metrics."""
    return _modern_items(random_keys=random_keys) if _takes_args() else _early_items(random_keys)


def _metric_options() -> Any:
    return ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"], best_mode="min")


def _numpy_random_state() -> tuple[Any, ...]:
    """Returns a legal generator state that, unlike a seeded one, compresses."""
    return ("MT19937", np.arange(624, dtype=np.uint32) % 23, 624, 0, 0.0)


def _modern_items(*, random_keys: bool) -> Layout:
    args = ocp.args
    saves: dict[str, Callable[[Tree], Any]] = {
        "state": args.StandardSave,
        "params": lambda tree: args.PyTreeSave(tree["params"]),
        "config": lambda _: args.JsonSave(CONFIG),
    }
    restores: Json = {
        "state": args.StandardRestore,
        "params": args.PyTreeRestore,
        "config": args.JsonRestore,
        "metrics": args.JsonRestore,
    }
    if random_keys:
        save_key = require(args, "JaxRandomKeySave")
        saves = {
            "key": lambda _: save_key(jax.random.key(42)),
            "legacy_key": lambda _: save_key(jax.random.PRNGKey(42)),
            "numpy_key": lambda _: args.NumpyRandomKeySave(_numpy_random_state()),
        }
        restores = {
            "metrics": args.JsonRestore,
            "key": args.JaxRandomKeyRestore,
            "legacy_key": args.JaxRandomKeyRestore,
            "numpy_key": args.NumpyRandomKeyRestore,
        }

    def make(path: Path) -> Any:
        # Some releases have to be told beforehand that there will be several items.
        names = {"item_names": tuple(saves)} if accepts(ocp.CheckpointManager, "item_names") else {}
        return ocp.CheckpointManager(path, options=_metric_options(), **names)

    def save(path: Path, tree: Tree) -> None:
        manager = make(path)
        composite = args.Composite(**{name: item(tree) for name, item in saves.items()})
        extra: Json = {"metrics": METRICS}
        if accepts(manager.save, "custom_metadata"):
            extra["custom_metadata"] = {"run": 1}
        manager.save(STEP, args=composite, **extra)
        finish(manager)

    def restore(path: Path) -> Tree:
        composite = args.Composite(**{name: kind() for name, kind in restores.items()})
        return dict(make(path).restore(STEP, args=composite).items())

    text = f"CheckpointManager().save({STEP}, args=Composite({', '.join(saves)}), metrics=...)"
    return Layout(text, save, restore, inside=str(STEP), whole_tree=False)


def _early_items(random_keys: bool) -> Layout:
    if random_keys:
        raise UnavailableError("this release has no JaxRandomKeyCheckpointHandler")

    def make(path: Path) -> Any:
        checkpointers = {
            "state": ocp.Checkpointer(ocp.PyTreeCheckpointHandler()),
            "config": ocp.Checkpointer(ocp.JsonCheckpointHandler()),
        }
        return ocp.CheckpointManager(path, checkpointers, options=_metric_options())

    def save(path: Path, tree: Tree) -> None:
        manager = make(path)
        manager.save(STEP, {"state": tree, "config": CONFIG}, metrics=METRICS)
        finish(manager)

    text = f"CheckpointManager(path, {{state, config}}).save({STEP}, items, metrics=...)"

    def restore(path: Path) -> Tree:
        return dict(make(path).restore(STEP))

    return Layout(text, save, restore, inside=str(STEP), whole_tree=False)


# The v1 API -------------------------------------------------------------------


def _v1() -> Any:
    try:
        v1 = importlib.import_module("orbax.checkpoint.experimental.v1")
    except ImportError as error:
        raise UnavailableError(f"no v1 API: {error}") from error
    if not hasattr(v1, "save") and not hasattr(v1, "save_pytree"):
        raise UnavailableError("the v1 API has neither save nor save_pytree")
    return v1


def _v1_context(saving: Json, pytree_saving: Json) -> Any:
    v1 = _v1()
    kinds: dict[str, tuple[Any, Json]] = {
        "array_options": (v1.options.ArrayOptions, saving),
        "pytree_options": (v1.options.PyTreeOptions, pytree_saving),
    }
    options = {
        name: kind(saving=build(kind.Saving, **chosen)) for name, (kind, chosen) in kinds.items()
    }
    return v1.Context(**options)


def v1_save(
    save_options: Json | None = None, pytree_saving: Json | None = None, **saving: Any
) -> Layout:
    """Returns the v1 `save` (once `save_pytree`) under a context with array saving options."""
    v1 = _v1()
    save_tree = getattr(v1, "save", None) or v1.save_pytree
    load_tree = getattr(v1, "load", None) or v1.load_pytree
    name = (save_options or {}).get("checkpointable_name")
    if name is not None and not accepts(save_tree, "checkpointable_name"):
        raise UnavailableError(f"{save_tree.__name__} takes no checkpointable_name")
    _v1_context(saving, pytree_saving or {})

    def save(path: Path, tree: Tree) -> None:
        with _v1_context(saving, pytree_saving or {}):
            save_tree(path, tree, **(save_options or {}))

    def restore(path: Path) -> Tree:
        with _v1_context(saving, pytree_saving or {}):
            return load_tree(path, **({"checkpointable_name": name} if name else {}))

    chosen = {**saving, **(pytree_saving or {}), **(save_options or {})}
    text = "v1." + call_text(save_tree, **chosen)
    return Layout(text, save, restore)


def v1_rich_types() -> Layout:
    """Returns the v1 save with tuples and named tuples in the metadata."""
    tree_metadata = importlib.import_module("orbax.checkpoint._src.metadata.tree")
    rich = tree_metadata.PyTreeMetadataOptions(support_rich_types=True)
    return v1_save(pytree_saving={"pytree_metadata_options": rich})


def v1_chunked(chunk_byte_size: int, **saving: Any) -> Layout:
    """Returns the v1 save with a limit on the size of a chunk."""
    storage = _v1().options.ArrayOptions.Saving.StorageOptions
    return v1_save(storage_options=storage(chunk_byte_size=chunk_byte_size), **saving)


def v1_checkpointables() -> Layout:
    """Returns several named v1 checkpointables in one checkpoint."""
    v1 = _v1()

    def save(path: Path, tree: Tree) -> None:
        named = {"pytree": tree, "weights": {"bias": tree["kernel"][0]}, "config": CONFIG}
        v1.save_checkpointables(path, named, custom_metadata={"run": 1})

    text = "v1.save_checkpointables(path, {pytree, weights, config}, custom_metadata=...)"

    def restore(path: Path) -> Tree:
        return dict(v1.load_checkpointables(path).items())

    return Layout(text, save, restore, whole_tree=False)


def v1_training() -> Layout:
    """Returns a step of the v1 training `Checkpointer`."""
    v1 = _v1()
    checkpointer_class = require(v1.training, "Checkpointer")

    def save(path: Path, tree: Tree) -> None:
        checkpointer = checkpointer_class(path)
        save_tree = getattr(checkpointer, "save", None) or checkpointer.save_pytree
        save_tree(STEP, tree, metrics=METRICS)
        checkpointer.close()

    def restore(path: Path) -> Tree:
        checkpointer = checkpointer_class(path)
        load_tree = getattr(checkpointer, "load", None) or checkpointer.load_pytree
        return load_tree(STEP)

    text = f"v1.training.Checkpointer(path).save({STEP}, tree, metrics=...)"
    return Layout(text, save, restore, inside=str(STEP))


# --------------------------------------------------------------------------------------------------
# The table of variants
# --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Variant:
    """A layout together with the tree written in it."""

    name: str
    layout: Callable[[], Layout]
    leaves: Callable[[], LeafTable]


# How arrays are stored: OCDBT or plain files, then the Zarr version.
STORAGES: Mapping[str, Json] = {
    # Releases from before zarr3 know no such option, and must not be given one.
    "ocdbt-zarr2": {"use_ocdbt": True},
    "files-zarr2": {"use_ocdbt": False},
    "ocdbt-zarr3": {"use_ocdbt": True, "use_zarr3": True},
    "files-zarr3": {"use_ocdbt": False, "use_zarr3": True},
}


def _bound(function: Callable[..., Layout], options: Json) -> Callable[[], Layout]:
    return lambda: function(**options)


def _each_storage(
    prefix: str,
    leaves: Callable[[], LeafTable],
    function: Callable[..., Layout],
    names: Sequence[str] = tuple(STORAGES),
    **more: Any,
) -> Iterator[Variant]:
    """Yields one variant for each of some ways of storing arrays."""
    for name in names:
        yield Variant(f"{prefix}-{name}", _bound(function, {**STORAGES[name], **more}), leaves)


def _storage() -> Iterator[Variant]:
    """Yields what differs in how arrays are stored."""
    # The tree is recorded alike whatever Zarr version holds the arrays.
    zarr2 = ("ocdbt-zarr2", "files-zarr2")
    yield from _each_storage("pytree", all_leaves, pytree)
    yield from _each_storage("uncompressed", few_leaves, pytree, use_compression=False)
    yield from _each_storage("containers", containers, pytree, zarr2)
    yield from _each_storage("rich-types", rich_containers, rich_types, zarr2[:1])
    yield from _each_storage("keys", odd_keys, pytree, zarr2)
    yield from _each_storage("sharded", sharded, pytree)
    yield from _each_storage("unplaced", unplaced, unplaced_layout, zarr2)
    size = {"chunk_byte_size": 1024}
    names = ("ocdbt-zarr2", "ocdbt-zarr3", "files-zarr3")
    yield from _each_storage("chunked", chunked, pytree_with_save_args, names, leaf_options=size)
    yield from _each_storage("chunk-shapes", chunked, chunk_shapes)
    axes = {"leaf_options": {"chunk_byte_size": 256, "shard_axes": (1,)}, "use_ocdbt": False}
    yield Variant("shard-axes", _bound(pytree_with_save_args, axes), few_sharded)
    cast = {"leaf_options": {"dtype": dtype_named("bfloat16")}, "use_ocdbt": True}
    yield Variant("cast-to-bfloat16", _bound(pytree_with_save_args, cast), few_sharded)
    limit = {"save_options": {"ocdbt_target_data_file_size": 512}, "use_zarr3": True}
    yield Variant("ocdbt-small-files", _bound(pytree, limit), few_sharded)


def _metadata() -> Iterator[Variant]:
    """Yields what differs in the files beside the arrays."""
    yield Variant("aggregate-inline", lambda: aggregate(1, use_ocdbt=False), all_leaves)
    yield Variant("aggregate-containers", lambda: aggregate(1, use_ocdbt=False), containers)
    yield Variant("aggregate-mixed-files", lambda: aggregate(2, use_ocdbt=False), all_leaves)
    yield Variant("aggregate-mixed-ocdbt", lambda: aggregate(2, use_ocdbt=True), all_leaves)
    for name in ("ocdbt-zarr2", "files-zarr2"):
        options = {**STORAGES[name], "write_tree_metadata": False}
        yield Variant(f"no-metadata-{name}", _bound(pytree, options), containers)
    unmerged = {"use_ocdbt": True, "ocdbt_merge": False}
    yield Variant("ocdbt-unmerged", _bound(pytree, unmerged), sharded)
    for name, handler in (
        ("no-sharding-file", {"enable_write_sharding_file": False}),
        ("no-array-metadata", {"array_metadata_store": None}),
        (
            "replica-folders",
            {"use_replica_parallel": True, "enable_replica_parallel_separate_folder": True},
        ),
    ):
        yield Variant(name, _bound(array_handler_options, handler), few_sharded)
    yield Variant("standard", standard, kinds_of_leaves)
    yield Variant("standard-files", lambda: standard(use_ocdbt=False), few_leaves)
    yield Variant("single-array", single_array, one_array)


def _managers() -> Iterator[Variant]:
    yield Variant("manager-single", manager_single, training_state)
    named = {"step_name": f"ckpt_{STEP:08d}", "step_prefix": "ckpt", "step_format_fixed_length": 8}
    yield Variant("manager-step-name", _bound(manager_single, named), one_array)
    yield Variant("manager-items", manager_items, training_state)
    yield Variant("manager-random-keys", lambda: manager_items(random_keys=True), training_state)


def _v1_variants() -> Iterator[Variant]:
    yield Variant("v1-default", v1_save, kinds_of_leaves)
    yield Variant("v1-rich-types", v1_rich_types, rich_containers)
    for name in ("ocdbt-zarr2", "files-zarr3"):
        options = {"use_zarr3": False, **STORAGES[name]}
        yield Variant(f"v1-{name}", _bound(v1_save, options), few_leaves)
    yield Variant("v1-sharded", v1_save, few_sharded)
    yield Variant("v1-chunked", lambda: v1_chunked(64), few_sharded)
    named = {"save_options": {"checkpointable_name": "pytree", "custom_metadata": {"run": 1}}}
    yield Variant("v1-named", _bound(v1_save, named), training_state)
    yield Variant("v1-checkpointables", v1_checkpointables, one_array)
    yield Variant("v1-training", v1_training, training_state)


def variants() -> Iterator[Variant]:
    """Yields every variant, whether or not the installed release can write it.

    Variants with the same tree come one after another, so that the packed file repeats itself
    within the window that gzip looks back over.
    """
    yield from _storage()
    yield from _metadata()
    yield from _managers()
    yield from _v1_variants()


# --------------------------------------------------------------------------------------------------
# Writing
# --------------------------------------------------------------------------------------------------


def first_line(error: BaseException) -> str:
    """Returns an error's class and first line, without what changes from run to run."""
    lines = str(error).strip().splitlines() or [""]
    text = re.sub(re.escape(tempfile.gettempdir()) + r"[^\s'\":,]*", "<path>", lines[0])
    text = re.sub(r"\btrial\d+\b", "<path>", re.sub(r" at 0x[0-9a-f]+", "", text))
    return f"{type(error).__name__}: {text.split(' [source locations=')[0]}"[:240]


@dataclasses.dataclass
class Writer:
    """Writes variants one by one, and drops the leaves that one cannot hold.

    Attributes:
        out: The output directory.
        scratch: A directory for trial saves.
        entries: What `expected.json` says about each variant written so far.
        not_supported: The error for each variant, or leaf of one, that was left out.
        suspects: Leaves that failed in an earlier variant, which later ones try alone first.
        trials: The number of trial saves so far.
    """

    out: Path
    scratch: Path
    entries: Json = dataclasses.field(default_factory=dict)
    not_supported: dict[str, str] = dataclasses.field(default_factory=dict)
    suspects: set[str] = dataclasses.field(default_factory=set)
    trials: int = 0

    def write(self, variant: Variant) -> None:
        """Writes one variant with all the leaves that survive a save and a restore."""
        try:
            layout = variant.layout()
            tree = self._supported(variant, layout, self._made(variant))
            self._record(variant, layout, tree)
        except Exception as error:  # noqa: BLE001 - any failure is a fact about the release
            shutil.rmtree(self.out / variant.name, ignore_errors=True)
            self.not_supported[variant.name] = first_line(error)

    def _made(self, variant: Variant) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for name, make in variant.leaves().items():
            try:
                tree[name] = make()
            except Exception as error:  # noqa: BLE001 - as in write
                self.not_supported[f"{variant.name}:{name}"] = first_line(error)
        return tree

    def _supported(self, variant: Variant, layout: Layout, tree: dict[str, Any]) -> Tree:
        """Returns what is left of `tree` without the entries that fail."""
        trusted = {name: leaf for name, leaf in tree.items() if name not in self.suspects}
        failure = self._failure(layout, trusted)
        if failure is None and trusted.keys() == tree.keys():
            return tree
        # Where even an ordinary leaf fails, the layout is at fault and not the leaves.
        first = next(iter(trusted))
        if failure and (len(tree) == 1 or self._failure(layout, {first: tree[first]})):
            raise failure
        kept = {first: tree[first]} if failure else trusted
        for name in [name for name in tree if name not in kept]:
            # The rest of the tree keeps the entry company: some releases refuse a tree of
            # nothing but an empty dict, and some names only clash with other names.
            error = self._failure(layout, {**kept, name: tree[name]})
            if error is None:
                kept[name] = tree[name]
            else:
                self.suspects.add(name)
                self.not_supported[f"{variant.name}:{name}"] = first_line(error)
        return {name: leaf for name, leaf in tree.items() if name in kept}

    def _failure(self, layout: Layout, tree: Tree) -> Exception | None:
        """Returns the error of a trial save and restore, if there is one."""
        self.trials += 1
        # Failed saves may go on writing in the background, so no two trials share a directory.
        path = self.scratch / f"trial{self.trials}"
        try:
            layout.save(path, tree)
            if not list((path / layout.inside).glob(layout.must_contain)):
                return UnavailableError(f"the release writes no {layout.must_contain}")
            encode(layout.read(path, tree)[0])
        except Exception as error:  # noqa: BLE001 - as in write
            return error
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return None

    def _record(self, variant: Variant, layout: Layout, tree: Tree) -> None:
        path = self.out / variant.name
        layout.save(path, tree)
        restored, second = layout.read(path, tree)
        encoded = encode(restored)
        entry: Json = {
            "path": str(Path(variant.name) / layout.inside),
            "written_by": layout.written_by,
            "tree": encoded,
        }
        if second:
            entry["restored_with"] = second
        changed = list(differences(encode(tree), encoded)) if layout.whole_tree else []
        if changed:
            entry["differences"] = sorted(changed)
        for key, value in (("shardings", tree), ("restored_shardings", restored)):
            described = shardings(value)
            if described:
                entry[key] = described
        self.entries[variant.name] = entry


def main(arguments: Sequence[str]) -> int:
    """Writes every variant and `expected.json`.

    Args:
        arguments: The output directory, then optionally patterns: only the variants whose name
            matches one of them are written.

    Returns:
        The exit status.
    """
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(arguments[0]).resolve()
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        writer = Writer(out, Path(scratch))
        for variant in variants():
            if len(arguments) > 1 and not any(re.search(p, variant.name) for p in arguments[1:]):
                continue
            started = time.monotonic()
            writer.write(variant)
            state = "wrote" if variant.name in writer.entries else "left out"
            print(f"{state} {variant.name} {time.monotonic() - started:.1f} s", flush=True)
    expected: Json = {
        "orbax": importlib.metadata.version("orbax-checkpoint"),
        "jax": jax.__version__,
        "variants": writer.entries,
        "not_supported": dict(sorted(writer.not_supported.items())),
    }
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (out / "expected.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    # A save that failed can leave threads behind that wait minutes for a directory it never made.
    os._exit(status)
