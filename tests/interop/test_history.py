"""Restore what past releases of Orbax have just written; see `nox -s interop_history`."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

import orbit_ckpt as ocp
from tests.interop.expected import checkpoints, comparison_for

pytestmark = pytest.mark.interop


def test_every_layout_of_every_release_restores_exactly(request: pytest.FixtureRequest) -> None:
    root: Path | None = request.config.getoption("--reference")
    if root is None:
        pytest.skip("needs --reference: checkpoints that a past release has written")
    wrong: list[str] = []
    checked = 0
    for directory in sorted(path.parent for path in root.glob("*/expected.json")):
        for name, path, tree in checkpoints(directory):
            with jax.enable_x64(True):
                loaded = ocp.load(path)
            found = comparison_for(name).differences(tree, loaded)
            wrong += [f"{directory.name} {name} {line}" for line in found]
            checked += 1
    assert checked > 0
    assert wrong == []
