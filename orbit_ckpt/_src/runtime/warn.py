"""Issue warnings at the caller of this package."""

from __future__ import annotations

import inspect
import warnings

_PACKAGE = f"{__name__.partition('.')[0]}."


def warn_caller(message: str) -> None:
    """Issue a `UserWarning` located at the nearest caller outside this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
