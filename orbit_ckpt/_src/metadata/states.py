"""What is recorded of the state of an object."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from orbit_ckpt._src.metadata.codec import decode_versioned

RECORD_VERSION = 1
"""Version of the form of a state's record."""


class StateKind(StrEnum):
    """How a state is stored, and what it was.

    Attributes:
        JSON: A JSON value, as JSON.
        JSON_TEXT: Bytes that are JSON, in the same file.
        BYTES: Other bytes.
        TREE: A pytree.
    """

    JSON = "json"
    JSON_TEXT = "json_text"
    BYTES = "bytes"
    TREE = "tree"


class StateRecord(Struct, frozen=True):
    """`process_<i>-of-<n>.kind`: what the state of one process is.

    Attributes:
        kind: How it is stored.
        type: Class of the object that it is the state of; for people.
        format_version: Version of the record's form.
    """

    kind: StateKind
    type: str
    format_version: int = RECORD_VERSION

    @classmethod
    def decode(cls, data: bytes, where: str) -> StateRecord:
        """Decode the JSON form.

        Raises:
            FormatError: A field is missing or of a wrong type, or the version is a later one.
        """
        return decode_versioned(data, cls, where, newest=RECORD_VERSION)
