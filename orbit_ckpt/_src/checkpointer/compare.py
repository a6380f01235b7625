"""Compare two checkpoints."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial

from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.progress import Progress, reporting
from orbit_ckpt._src.pytree.compare.report import CheckpointDiff
from orbit_ckpt._src.pytree.compare.trees import compare_checkpoints
from orbit_ckpt._src.runtime.checks import as_flag, check_executor, check_int
from orbit_ckpt._src.runtime.read_count import counting_reads
from orbit_ckpt._src.storage.consistent_read import read_consistently
from orbit_ckpt._src.storage.path import PathLike, resolve_path
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY

_MAX_BYTES = 1 << 28


def diff(
    a: PathLike,
    b: PathLike,
    *,
    values: bool = False,
    max_bytes: int = _MAX_BYTES,
    reader: Format | tuple[Format | None, Format | None] | None = None,
    progress: bool | Progress | None = None,
    executor: Executor | None = None,
) -> CheckpointDiff:
    """Compare two saved pytrees without using a device.

    Leaves correspond if their names are equal: a value under the dict key `0` in one tree is
    compared with the first element of a list in the other, and the containers are reported as
    different.

    Args:
        a: A checkpoint, one step of a manager, or an item of either.
        b: Another.
        values: Whether to compare values too, element by element, rather than only metadata:
            containers, types, shapes and dtypes.
        max_bytes: Approximate number of bytes of values, of both together, to hold at once.
        reader: The format to read, as for `load`, or one for each.
        progress: As for `save`, with the bytes of values read from both checkpoints.
        executor: Where to read and compare the values of arrays, as for `verify`; the result is
            the same as without one.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; the message says what exists instead.
        IncompleteCheckpointError: The save did not finish.
        CorruptionError: Stored data is missing or damaged; names leaf, chunk and file.
        ValueError: `max_bytes` is not positive.

    Example:
        >>> orbit_ckpt.save("run/a", {"w": np.zeros((2, 3)), "step": 1})
        >>> orbit_ckpt.save("run/b", {"w": np.eye(2, 3), "step": 1})
        >>> difference = orbit_ckpt.diff("run/a", "run/b", values=True)
        >>> {change.path: change.what for change in difference.changed}
        {'w': 'values'}
    """
    check_int("max_bytes", max_bytes, least=1)
    check_executor(executor)
    compare = partial(
        compare_checkpoints,
        registry=GLOBAL_TYPE_HANDLER_REGISTRY,
        values=as_flag("values", values),
        max_bytes=max_bytes,
        readers=reader if isinstance(reader, tuple) else (reader, reader),
        executor=executor,
    )
    with (
        reporting(progress, "Comparing") as report,
        counting_reads(wants_total=report is not None) as count,
    ):
        if report is not None:
            report(count.measure)
        return read_consistently([resolve_path(a), resolve_path(b)], compare)
