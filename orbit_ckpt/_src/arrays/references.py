"""References to arrays on the CPU, which a save holds instead of copies.

A `jax.Array` is immutable, but its memory is not always its own: `device_put`, DLPack and others
may share that of a numpy array, which its owner may change. Only outputs of XLA programs are
referred to. A live numpy view keeps their values: XLA then copies an array that is donated, and
keeps the memory of one that is deleted.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.memory import byte_view
from orbit_ckpt._src.crc32c import crc32c

_TESTED = ((0, 10, 2), (0, 13))
"""Versions of JAX on which views keep values: from the first up to the second, exclusive."""

_PACKAGES = tuple(os.path.join(*module.__path__, "") for module in (jax, jaxlib))

_CALLS_OF_XLA = frozenset(
    (
        "ExecuteReplicated.__call__",
        "apply_primitive",
        "ufunc.__call__",
        "_pjit_call_impl",
    )
)
"""Functions of JAX that create arrays only by running an XLA program."""

_SAMPLE_SPACING = 1 << 14
"""Bytes from one word of a sample to the next; reading them costs about 1 ms per GiB."""

_WORD_BYTES = 8
_WHOLE_BYTES = 1 << 16
"""Smaller arrays are checksummed as a whole."""


def view_of_output(array: jax.Array) -> HostArray | None:
    """Return a view of an array on one CPU device that keeps its values, whatever its owner does.

    Returns:
        None if the memory may be somebody else's, or if no view of it can be had; then copy it.
    """
    if not is_output(array) or not views_keep_values():
        return None
    view: HostArray = np.asarray(array)
    return view if view.flags.c_contiguous and not view.flags.owndata else None


def is_output(array: jax.Array) -> bool:
    """Return whether an array is known to be an output of an XLA program.

    JAX records which call created an array. Where that record is missing or unknown, this returns
    False.
    """
    # an undocumented attribute, whose absence must not fail a save
    frames = getattr(getattr(array, "traceback", None), "raw_frames", None)
    if frames is None:
        return False
    codes: Any = frames()[0]
    if not codes:
        return False
    code = codes[0]
    is_caller = not code.co_filename.startswith(_PACKAGES)  # compiled functions have no frame
    return is_caller or code.co_qualname in _CALLS_OF_XLA


@functools.cache
def views_keep_values() -> bool:
    """Return whether a live numpy view keeps the values of an array that is donated or deleted.

    Known for tested versions of JAX, tried out on others.
    """
    version = tuple(int(number) for number in re.findall(r"\d+", jax.__version__)[:3])
    return _TESTED[0] <= version < _TESTED[1] or try_views()


def try_views() -> bool:
    """Donate and delete small arrays with live numpy views; return whether the views are intact."""
    device = jax.local_devices(backend="cpu")[0]
    jit = cast(Callable[..., Callable[..., jax.Array]], jax.jit)

    def next_of(values: jax.Array) -> jax.Array:
        return values + 1

    with jax.default_device(device):
        values = jit(functools.partial(jnp.arange, 1024, dtype=np.int32))()
        step = jit(next_of, donate_argnums=0)
        view = np.asarray(values)
        following = step(values)
        last = np.asarray(following)
        following.delete()
        for _ in range(4):  # these may take freed memory
            np.asarray(step(jnp.zeros(1024, np.int32)))
    expected = np.arange(1024)
    return np.array_equal(view, expected) and np.array_equal(last, expected + 1)


def sample_checksum(values: HostArray) -> int:
    """Return a checksum of all bytes of a small array, or of words spread evenly over another.

    A change of 16 KiB or more in a row always changes it.
    """
    data: Any = byte_view(values)
    if data.nbytes <= _WHOLE_BYTES:
        return crc32c(data)
    words = data[: data.nbytes // _WORD_BYTES * _WORD_BYTES].cast("Q")
    sample = np.frombuffer(words, np.uint64)[:: _SAMPLE_SPACING // _WORD_BYTES]
    return crc32c(np.ascontiguousarray(sample), crc32c(data[-_WORD_BYTES:]))
