"""Which cells of a large matrix a usual run takes; `nox -s matrix` runs the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def cells(values: Iterable[Any], usual: Callable[[Any], bool]) -> list[ParameterSet]:
    """Return parameters of a test or a fixture, most of which a usual run leaves out.

    Args:
        values: What `parametrize` takes, one value a cell.
        usual: Whether a usual run takes the cell of a value.
    """
    found = [v if isinstance(v, ParameterSet) else pytest.param(v) for v in values]
    return [
        cell
        if usual(cell.values[0])
        else pytest.param(*cell.values, id=cell.id, marks=[*cell.marks, pytest.mark.matrix])
        for cell in found
    ]
