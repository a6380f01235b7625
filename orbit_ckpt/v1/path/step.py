"""Names of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.step_names import (
        NameFormat,
        composite_name_format,
        standard_name_format,
    )

__all__ = [
    "NameFormat",
    "composite_name_format",
    "standard_name_format",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.step_names": "NameFormat, composite_name_format, standard_name_format",
    },
)
