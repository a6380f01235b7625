"""The examples of the guide to the v1 API run with Orbax as they do with this library."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "migrate_v1.md"

IMPORTS = {
    "from orbit_ckpt import v1 as ocp": "from orbax.checkpoint import v1 as ocp",
    "import orbit_ckpt as ocp_v0": "import orbax.checkpoint as ocp_v0",
}


def examples() -> str:
    return "\n".join(
        re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    )


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["orbit_ckpt", "orbax"])
def test_examples_run(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = examples()
    for ours, theirs in IMPORTS.items():
        assert ours in code
        code = code.replace(ours, theirs) if library == "orbax" else code
    assert ("orbit_ckpt" in code) == (library == "orbit_ckpt")
    exec(compile(code, GUIDE.name, "exec"), {"__name__": "guide"})  # noqa: S102 - our own page
    assert (tmp_path / "runs" / "run" / "20").is_dir()
