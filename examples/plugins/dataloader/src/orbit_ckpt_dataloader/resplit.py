"""Ways to continue on another number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orbit_ckpt.errors import ProcessCountError

_INDEX = "next_index"


def same_steps(states: Sequence[Any], process: int, count: int) -> object:
    """Return the state that all processes had in common.

    It suits iterators that divide global batches, whose processes all count the same steps.

    Raises:
        ProcessCountError: The states differ.
    """
    del process
    if any(state != states[0] for state in states):
        shown = "; ".join(f"process {i}: {state}" for i, state in enumerate(states))
        raise ProcessCountError(
            f"the processes that saved were at different positions ({shown}), and now there are "
            f"{count}. Restore with {len(states)} processes, or give a resplit function.",
            saved=len(states),
            current=count,
        )
    return states[0]


def same_examples(states: Sequence[Any], process: int, count: int) -> object:
    """Return a state of grain that continues after the elements that all processes have read.

    It suits pipelines whose processes each read every n-th element, `dataset[process::count]`, with
    as many elements per step as before. Their states are `{"next_index": ...}`.

    Raises:
        ProcessCountError: The states are of another kind, the processes were at different
            positions, or have read a number of elements that cannot be divided.
    """
    del process
    known = all(isinstance(state, dict) and list(state) == [_INDEX] for state in states)
    total = sum(state[_INDEX] for state in states) if known else 0
    if not known:
        problem = f"their states are not of the form {{'{_INDEX}': ...}}: {states[0]}"
    elif any(state != states[0] for state in states):
        problem = f"they had read {[state[_INDEX] for state in states]} elements each"
    elif total % count:
        problem = f"they had read {total} elements, which {count} processes cannot share equally"
    else:
        return {_INDEX: total // count}
    raise ProcessCountError(
        f"{len(states)} processes saved, and now there are {count}; {problem}. Restore with "
        f"{len(states)} processes, or give another resplit function.",
        saved=len(states),
        current=count,
    )
