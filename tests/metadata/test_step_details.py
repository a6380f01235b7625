"""The document of a step that a manager writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orbit_ckpt._src.metadata.step_details import StepDetails, read_step_details, write_step_details
from orbit_ckpt._src.storage.layout import STEP_DETAILS
from orbit_ckpt.errors import FormatError


@pytest.mark.parametrize("details", [StepDetails(temporary=True), StepDetails()])
def test_details_come_back(details: StepDetails, tmp_path: Path) -> None:
    write_step_details(tmp_path, details)
    assert read_step_details(tmp_path) == details


def test_document_has_a_version(tmp_path: Path) -> None:
    write_step_details(tmp_path, StepDetails(temporary=True))
    document = json.loads((tmp_path / STEP_DETAILS).read_bytes())
    assert document == {"version": 1, "temporary": True}


def test_step_without_a_document_is_permanent(tmp_path: Path) -> None:
    assert read_step_details(tmp_path) == StepDetails(temporary=False)


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    (tmp_path / STEP_DETAILS).write_text('{"version": 1, "temporary": true, "later": [1]}')
    assert read_step_details(tmp_path).temporary


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"version": 2, "temporary": "soon"}',
            "orbit_step.json: format version 2; .*up to 1",
        ),
        ('{"temporary": true}', "version"),
        ('{"version": 1, "temporary": 1}', "temporary"),
        ("not JSON", "expected JSON"),
        ("", "expected JSON"),
    ],
)
def test_document_that_is_not_understood_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / STEP_DETAILS).write_text(text)
    with pytest.raises(FormatError, match=message):
        read_step_details(tmp_path)
