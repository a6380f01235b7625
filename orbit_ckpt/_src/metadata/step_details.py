"""`orbit_step.json` and `orbit_retention.json`: what a manager records about a step.

Separate from `files`, because commands about a run read it without JAX and numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.metadata.codec import decode_versioned, encode_json
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.inner_path import read_inner
from orbit_ckpt._src.storage.layout import RETENTION, STEP_DETAILS

STEP_DETAILS_VERSION = 1
"""Version of the form of `orbit_step.json`."""


class RecordedRule(Struct, frozen=True, omit_defaults=True):
    """A rule by which a manager kept steps when it saved one.

    Attributes:
        text: The rule in words.
        policy: Name of its class if `fields` suffice to apply it again, else empty.
        fields: The attributes of the policy.
    """

    text: str
    policy: str = ""
    fields: Mapping[str, object] = {}


class _RetentionDocument(Struct, frozen=True):
    rules: Sequence[RecordedRule]
    version: int = STEP_DETAILS_VERSION


class StepDetails(Struct, frozen=True):
    """Facts about a step that Orbax's documents do not record.

    Attributes:
        temporary: Whether the step is kept only until the next permanent one.
        version: Version of the document's format.
    """

    temporary: bool = False
    version: int = STEP_DETAILS_VERSION


def write_step_details(directory: Path, details: StepDetails) -> None:
    """Write the details of a step being saved.

    Raises:
        FileExistsError: The step already has some.
    """
    write_file(directory / STEP_DETAILS, encode_json(details))


def read_step_details(directory: Path) -> StepDetails:
    """Return the details of a step; a step without any is permanent.

    Raises:
        FormatError: The document is damaged or has an unknown version.
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


def write_rules(directory: Path, rules: Sequence[RecordedRule]) -> None:
    """Write the retention rules in force while a step is saved.

    They are a document of their own, since a manager that opens a run reads the details of every
    step, but nobody reads the rules of any but the newest.
    """
    write_file(directory / RETENTION, encode_json(_RetentionDocument(rules)))


def read_rules(directory: Path) -> Sequence[RecordedRule]:
    """Return the rules recorded with a step; none if it has none.

    Raises:
        FormatError: The document is damaged or has an unknown version.
        OSError: The file cannot be read.
    """
    try:
        data = read_inner(directory, RETENTION)
    except FileNotFoundError:
        return ()
    return decode_versioned(
        data,
        _RetentionDocument,
        str(directory / RETENTION),
        newest=STEP_DETAILS_VERSION,
        key="version",
    ).rules
