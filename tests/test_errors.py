"""What errors say cannot steer the terminal that shows them, and links what explains them."""

from __future__ import annotations

import copy
import pickle
import re
import traceback
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.text import visible
from orbit_ckpt.errors import CheckpointError, StorageError, TreeMismatchError

EVIL = "a\x1b[2J\x9b31m\u202eb\x07\r"
UGLY = ("\x1b", "\x9b", "\u202e", "\x07", "\r")


@pytest.mark.parametrize("text", ["w", "params.Größe.日本.🙂", "two\nlines", "it's 'so'", ""])
def test_what_is_printable_stays(text: str) -> None:
    assert visible(text) == text
    assert str(CheckpointError(text)) == text


def test_what_is_not_printable_is_escaped_as_by_repr() -> None:
    assert visible("\x1b[0m\u202e\u2066\x00\ud800") == r"\x1b[0m\u202e\u2066\x00\ud800"


@pytest.mark.parametrize("kind", [CheckpointError, StorageError])
def test_errors_and_their_notes_are_cleaned(kind: type[CheckpointError]) -> None:
    error = kind(EVIL)
    error.add_note(EVIL)
    text = "".join(traceback.format_exception(error))
    assert not any(sign in text for sign in UGLY)
    again = copy.copy(error)
    assert str(again) == str(error)


def test_names_of_leaves_in_errors_are_cleaned(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {EVIL: np.arange(3)})
    with pytest.raises(TreeMismatchError) as error:
        ocp.load(tmp_path / "c", like={"b": np.zeros(3)})
    assert not any(sign in str(error.value) for sign in UGLY)
    assert r"\x1b[2J" in str(error.value)


def test_a_traceback_ends_with_a_link_to_the_section_about_the_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        ocp.load(tmp_path / "none")
    caught.value.add_note("in a test")
    restored = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    for error in (caught.value, restored):
        *_, note, link = traceback.format_exception_only(error)
        assert note == "in a test\n"
        assert re.fullmatch(r"See https://\S+/troubleshooting/#CheckpointNotFoundError\n", link)
        assert "https" not in str(error)


def test_an_error_of_a_plug_in_links_the_section_about_its_base() -> None:
    class PluginError(StorageError):
        pass

    assert PluginError("full").__notes__[0].endswith("#StorageError")
