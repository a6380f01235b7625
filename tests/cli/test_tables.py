"""Tables fit the terminal: names stay whole as long as another column can be shortened."""

from __future__ import annotations

from orbit_ckpt._src.cli.tables import fit
from orbit_ckpt._src.text import shorten


def test_the_first_column_is_narrowed_last() -> None:
    assert fit([28, 6, 60], [4, 4, 6], 80) == [28, 6, 42]
    assert fit([28, 6, 60], [4, 4, 6], 40) == [18, 6, 12]
    assert fit([28, 6, 60], [4, 4, 6], 200) == [28, 6, 60]


def test_a_text_keeps_its_ends() -> None:
    assert shorten("params/layer_0/mlp/kernel", 16, mark="…") == "params/…p/kernel"
    assert shorten("kernel", 6) == "kernel"
