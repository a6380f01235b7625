"""`--reader`: checkpoints that are read with options of their format."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from orbit_ckpt._src.cli.readers import parse_reader
from tests.cli.conftest import Run

BITS = Path(__file__).parent.parent / "formats/samples/t5x/v2_bf16_as_uint16/checkpoint_42"


@pytest.mark.slow
def test_commands_read_as_asked_for(cli: Run) -> None:
    refused = cli("verify", BITS, status=2)
    assert "--reader t5x:uint16=as_bfloat16" in re.sub(r"\s+", " ", refused.err)
    meant = ("--reader", "t5x:uint16=as_bfloat16")
    assert "bfloat16[" in cli("tree", BITS, *meant).out
    assert "target/bias" in cli("stats", BITS, *meant).out
    assert "bfloat16" in cli("show", BITS, "target/bias", *meant).out
    assert cli("verify", BITS, *meant, "--json").json["intact"]
    cli("convert", BITS, "copy", "--to", "orbit", *meant)
    assert "bfloat16[" in cli("tree", "copy").out
    assert cli("diff", BITS, BITS, *meant, "--values", "--json").json["same"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eformer", "give t5x or tf"),
        ("t5x:steps=5", "no option 'steps'; give step, uint16, allow_legacy"),
        ("t5x:step=last", "step is 'last'; give a number"),
        ("t5x:uint16", "uint16 is ''; give error or as_bfloat16 or as_uint16"),
        ("tf:translate=mine", "give t5 or none"),
    ],
)
def test_a_reader_that_there_is_not_is_named(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=re.escape(message)):
        parse_reader(text)
