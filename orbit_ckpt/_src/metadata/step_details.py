"""`orbit_step.json`: what a manager remembers of a step.

Apart from `files`, because commands about a run read it without JAX and numpy.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.metadata.codec import decode_versioned, encode_json
from orbit_ckpt._src.storage.atomic import write_file
from orbit_ckpt._src.storage.inner_path import read_inner
from orbit_ckpt._src.storage.layout import STEP_DETAILS

STEP_DETAILS_VERSION = 1
"""Version of the form of `orbit_step.json`."""


class StepDetails(Struct, frozen=True):
    """What is recorded of a step beyond Orbax's documents.

    Attributes:
        temporary: Whether the step only bridges the time to the next permanent one.
        version: Version of the document's form.
    """

    temporary: bool = False
    version: int = STEP_DETAILS_VERSION


def write_step_details(directory: Path, details: StepDetails) -> None:
    """Write the details of a step that is being saved.

    Raises:
        FileExistsError: The step has some already.
    """
    write_file(directory / STEP_DETAILS, encode_json(details))


def read_step_details(directory: Path) -> StepDetails:
    """Return the details of a step; where none were written it is a permanent one.

    Raises:
        FormatError: The document is damaged, or of a version not known here.
        OSError: The file cannot be read.
    """
    file = directory / STEP_DETAILS
    try:
        data = read_inner(directory, STEP_DETAILS)
    except FileNotFoundError:
        return StepDetails()
    return decode_versioned(
        data, StepDetails, str(file), newest=STEP_DETAILS_VERSION, key="version"
    )
