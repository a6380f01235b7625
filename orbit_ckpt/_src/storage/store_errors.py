"""Errors of object stores, explained without a word of what the server answered but its code."""

from __future__ import annotations

import re

from orbit_ckpt._src.errors import StorageError


class BeyondEndError(StorageError):
    """A range of bytes reaches beyond the end of an object."""


class NotInTensorStoreError(StorageError):
    """TensorStore has no driver for a store."""


_ANNOTATIONS = re.compile(r" \[[\w-]+='.*", re.DOTALL)

_REFUSED = (
    "PERMISSION_DENIED|UNAUTHENTICATED|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied"
    "|[Cc]redential"
)
_UNREACHABLE = "ABORTED|UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED"
_FAILURES = (_REFUSED, _UNREACHABLE)
_LOCAL_FAILURES = "PERMISSION_DENIED|RESOURCE_EXHAUSTED"  # permissions, and open files
_REASONS = {
    "NoSuchBucket|^NOT_FOUND": (
        "There is no such bucket: create it, or check its name and the endpoint."
    ),
    _REFUSED: (
        "The store refuses the credentials, or they give no right to this: check "
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE (s3://), "
        "GOOGLE_APPLICATION_CREDENTIALS (gs://) and the bucket's policy."
    ),
    _UNREACHABLE: (
        "The store cannot be reached, or is overloaded: check the endpoint, try again later."
    ),
}


def store_failure(where: str, error: Exception, *, is_remote: bool) -> StorageError | None:
    """Convert an error of TensorStore to one of the storage, None if it is about the data.

    Args:
        where: What was read.
        error: The error.
        is_remote: Whether that is in an object store.
    """
    if not is_remote:
        is_failure = re.match(_LOCAL_FAILURES, str(error)) is not None
        return StorageError(f"{where}: reading failed: {error}") if is_failure else None
    is_failure = any(re.match(pattern, str(error)) for pattern in _FAILURES)
    return explain_failure(where, "reading", str(error)) if is_failure else None


def explain_failure(where: str, doing: str, text: str) -> StorageError:
    """Return an error that explains a failure without quoting the server's answer."""
    short = _ANNOTATIONS.sub("", text)
    if text.startswith("OUT_OF_RANGE"):
        return BeyondEndError(f"{where}: {doing}: {short}")
    advice = next((text for pattern, text in _REASONS.items() if re.search(pattern, short)), None)
    what = short if advice is None else f"{short.rstrip('. ')}. {advice}"
    return StorageError(f"{where}: {doing} failed: {what}")
