"""What `write_reference.py` recorded of a checkpoint, compared with what was loaded."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

EMPTY = {"dict": {}, "list": [], "tuple": ()}
NARROWED = {"float32": "float64", "int32": "int64", "uint32": "uint64", "complex64": "complex128"}

SHORT_NAMES = {"fry": "threefry2x32"}
"""What JAX before 0.4.34 called implementations of random keys."""


@dataclass(frozen=True)
class Comparison:
    """What counts as the same.

    Attributes:
        rich_types: Whether tuples and namedtuples may stand where the writer's own reader, which
            did not use the types it recorded, gave lists, dicts and None.
        placed: Whether JAX arrays may stand where the writer's own reader, without the file of
            shardings, gave numpy arrays.
        widened: Whether 64-bit JAX arrays may stand where the writer's own reader, without JAX's
            64-bit mode, gave their first 32 bits' worth.
    """

    rich_types: bool = False
    placed: bool = False
    widened: bool = True

    def differences(self, expected: Any, found: object, path: str = "") -> Iterator[str]:
        """Yield how a loaded tree differs from a recorded one, down to types and bits."""
        where = path or "<root>"
        match expected:
            case {"dict": children}:
                yield from self._children(children, _as_dict(found, self.rich_types), path)
            case {"namedtuple": _, "fields": children}:
                yield from self._children(children, _as_dict(found, rich_types=True), path)
            case {"list": children}:
                named = {str(i): child for i, child in enumerate(children)}
                yield from self._children(named, _as_list(found, self.rich_types), path)
            case {"tuple": children}:
                named = {str(i): child for i, child in enumerate(children)}
                yield from self._children(named, _as_list(found, rich_types=True), path)
            case _:
                yield from self._leaf(expected, found, where)

    def _leaf(self, expected: Any, found: object, where: str) -> Iterator[str]:
        match expected:
            case {"none": _}:
                if found is not None and not (self.rich_types and found == ()):
                    yield f"{where}: expected None, found {found!r}"
            case {"empty": kind}:
                if type(found) is not type(EMPTY[kind]) or found != EMPTY[kind]:
                    yield f"{where}: expected {EMPTY[kind]!r}, found {found!r}"
            case {"py": value, "type": kind}:
                decode = {"complex": lambda pair: complex(*pair), "bytes": base64.b64decode}
                wanted = decode[kind](value) if kind in decode else value
                if type(found).__name__ != kind or found != wanted:
                    yield f"{where}: expected {kind} {wanted!r}, found {found!r}"
            case {"prng": impl, "data": data}:
                wanted = SHORT_NAMES.get(impl, impl)
                if not isinstance(found, jax.Array) or str(jax.random.key_impl(found)) != wanted:
                    yield f"{where}: expected {impl} keys, found {found!r}"
                else:
                    keys = np.asarray(jax.random.key_data(found))
                    yield from self._array({**data, "kind": "np.ndarray"}, keys, where)
            case _:
                yield from self._array(expected, found, where)

    def _children(
        self, expected: Mapping[str, Any], found: Mapping[str, object] | None, path: str
    ) -> Iterator[str]:
        if found is None or found.keys() != expected.keys():
            names = None if found is None else sorted(found)
            yield f"{path or '<root>'}: expected {sorted(expected)}, found {names}"
            return
        for name, child in expected.items():
            yield from self.differences(child, found[name], f"{path}.{name}" if path else name)

    def _array(self, expected: Any, found: object, where: str) -> Iterator[str]:
        kinds = {"jax.Array": jax.Array, "np.ndarray": np.ndarray, "np.generic": np.generic}
        allowed = (kinds[expected["kind"]], *((jax.Array,) if self.placed else ()))
        if not isinstance(found, allowed):
            yield f"{where}: expected {expected['kind']}, found {type(found)} {found!r:.60}"
            return
        host = np.asarray(found)
        if self.widened and host.dtype.name == NARROWED.get(expected["dtype"]):
            host = host.astype(expected["dtype"])
        if host.dtype.name != expected["dtype"] or list(host.shape) != expected["shape"]:
            yield (
                f"{where}: expected {expected['dtype']}{expected['shape']}, "
                f"found {host.dtype}{list(host.shape)}"
            )
        elif not _same_bits(host, base64.b64decode(expected["data"])):
            yield f"{where}: values differ"


def variants(directory: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the description of every checkpoint in a directory, by name."""
    return json.loads((directory / "expected.json").read_text())["variants"]


def _as_dict(value: Any, rich_types: bool) -> Mapping[str, object] | None:
    if isinstance(value, dict):
        return {str(key): child for key, child in value.items()}
    if rich_types and hasattr(value, "_asdict"):
        return value._asdict()
    return {} if rich_types and value == () else None


def _as_list(value: Any, rich_types: bool) -> Mapping[str, object] | None:
    is_list = isinstance(value, list) or (rich_types and isinstance(value, tuple))
    return {str(i): child for i, child in enumerate(value)} if is_list else None


def _same_bits(host: np.ndarray, expected: bytes) -> bool:
    if "int" in host.dtype.name and host.dtype.name[-1] in "124" and host.dtype.itemsize == 1:
        # a number of 1, 2 or 4 bits has a byte in memory, the rest of which means nothing
        wanted = np.frombuffer(expected, host.dtype).reshape(host.shape)
        return np.array_equal(host.astype(np.int8), wanted.astype(np.int8))
    return host.tobytes() == expected


def checkpoints(directory: Path) -> Iterator[tuple[str, Path, Any]]:
    """Yield name, path and recorded tree of every checkpoint that holds a tree.

    Of a checkpoint with several items the tree is the one that `load` finds among them.
    """
    found_by_load = {"manager-items": "state", "v1-checkpointables": "pytree"}
    for name, variant in variants(directory).items():
        if name == "manager-random-keys":
            continue  # without a tree: see tests/manager/test_golden_runs.py
        tree = variant["tree"]
        item = found_by_load.get(name)
        yield name, directory / variant["path"], tree["dict"][item] if item else tree


def comparison_for(variant: str) -> Comparison:
    """Return what counts as the same for a checkpoint of `write_reference.py`."""
    unplaced = variant == "no-sharding-file" or variant.startswith("unplaced")
    return Comparison(rich_types="rich" in variant, placed=unplaced)
