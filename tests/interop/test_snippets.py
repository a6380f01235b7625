"""Idioms of public code that uses Orbax give the same results with `import orbit_ckpt as ocp`."""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest

import orbit_ckpt
from tests.cells import cells

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Snippet = Callable[[ModuleType, Path], object]

DIFFERENT: dict[str, object] = {}
"""Results of ours that differ from Orbax's, each documented in differences.md."""

RUNS = (
    "train_and_resume",
    "several_checkpointables",
    "best_steps",
    "deleted_steps",
    "older_methods",
)
"""Snippets of whole runs of training, the longest ones, that a usual run takes."""


def load_snippets() -> Iterator[tuple[str, Snippet]]:
    """Yield every public function of the files in `snippets`."""
    for file in sorted(Path(__file__).with_name("snippets").glob("*.py")):
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, value in vars(module).items():
            code = getattr(value, "__code__", None)
            if code is not None and code.co_varnames[:2] == ("ocp", "path"):
                yield f"{file.stem}.{name}", value


SNIPPETS = dict(load_snippets())


def is_usual(name: str) -> bool:
    """Return whether a usual run takes it; `tests/v1/test_training.py` has runs of v1 too."""
    file, _, function = name.partition(".")
    return function in RUNS if file == "v1_runs" else function != "fine_tuning"


def comparable(value: Any) -> object:
    """Return a value whose `==` and `repr` show types, dtypes, shardings and values."""
    if isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        array = np.asarray(value)
        return ("jax", str(array.dtype), array.shape, array.tolist(), str(value.sharding))
    if isinstance(value, np.ndarray):
        return ("numpy", str(value.dtype), value.shape, value.tolist())
    if isinstance(value, Mapping):
        return {key: comparable(leaf) for key, leaf in value.items()}
    if isinstance(value, tuple | list):
        return (type(value).__name__, [comparable(leaf) for leaf in value])
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: comparable(getattr(value, field.name)) for field in fields}
    return value


def result_of(snippet: Snippet, library: ModuleType, directory: Path) -> object:
    """Run a snippet with one of the two libraries."""
    directory.mkdir()
    handlers = library.test_utils.global_type_handler_registry_context()
    with warnings.catch_warnings(), handlers:
        warnings.simplefilter("ignore")
        return comparable(snippet(library, directory))


@pytest.mark.parametrize("name", cells(SNIPPETS, is_usual))
def test_a_snippet_gives_the_result_of_orbax(name: str, tmp_path: Path) -> None:
    expected = result_of(SNIPPETS[name], orbax.checkpoint, tmp_path / "orbax")
    found = result_of(SNIPPETS[name], orbit_ckpt, tmp_path / "orbit")
    if name in DIFFERENT:
        assert found == DIFFERENT[name] != expected
    else:
        assert found == expected
