"""`orbit_step.json`: what a manager has to remember about one step."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from orbit_ckpt._src.errors import VersionError
from orbit_ckpt._src.metadata.codec import decode_json, encode_json
from orbit_ckpt._src.storage.atomic import write_file
from orbit_ckpt._src.storage.inner_path import read_inner
from orbit_ckpt._src.storage.layout import STEP_DETAILS

STEP_DETAILS_VERSION = 1
"""Version of the form of `orbit_step.json`."""


class StepDetails(Struct, frozen=True):
    """What is recorded of a step beyond Orbax's documents.

    Attributes:
        temporary: Whether the step only bridges the time to the next permanent one.
    """

    temporary: bool = False


class _Document(Struct, frozen=True):
    version: int
    temporary: bool = False


class _Version(Struct):
    version: int


def write_step_details(directory: Path, details: StepDetails) -> None:
    """Write the details of a step that is being saved.

    Raises:
        FileExistsError: The step has some already.
    """
    document = _Document(STEP_DETAILS_VERSION, **msgspec.structs.asdict(details))
    write_file(directory / STEP_DETAILS, encode_json(document))


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
    version = decode_json(data, _Version, str(file)).version
    if version != STEP_DETAILS_VERSION:
        raise VersionError(
            f"{file}: version {version}; this version of orbit_ckpt reads {STEP_DETAILS_VERSION}. "
            "Install a newer one."
        )
    return StepDetails(decode_json(data, _Document, str(file)).temporary)
