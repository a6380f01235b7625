"""Advice of the error that lists how a target differs from a checkpoint."""

from __future__ import annotations

from msgspec import Struct


class MismatchHints(Struct, frozen=True):
    """What to do about each kind of difference, in the terms of the API that was called.

    Attributes:
        missing: About leaves that the checkpoint lacks.
        unexpected: About leaves that the target lacks.
        shapes: About arrays of another shape.
        dtypes: About arrays of another kind of number.
    """

    missing: str = (
        "for leaves that the checkpoint lacks give `fallback=` a tree that has them, or a "
        "target with values and `missing='target'`"
    )
    unexpected: str = (
        "to leave out leaves of the checkpoint pass `partial_restore=True` "
        "(`unexpected='ignore'` to `load`) or use PLACEHOLDER leaves"
    )
    shapes: str = (
        "to pad or cut arrays pass `strict=False`; a rule such as `transform.Transpose` or "
        "`transform.Map` changes shapes"
    )
    dtypes: str = "to cast to another kind of number pass `cast='unsafe'`"
