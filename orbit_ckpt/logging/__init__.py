"""Loggers of the events of managers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.statistics import AbstractLogger, CompositeLogger, StandardLogger
    from orbit_ckpt._src.manager.trackers import MlflowLogger, TensorBoardLogger, WandbLogger
    from orbit_ckpt.logging import step_statistics

__all__ = [
    "AbstractLogger",
    "CompositeLogger",
    "MlflowLogger",
    "StandardLogger",
    "TensorBoardLogger",
    "WandbLogger",
    "step_statistics",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.statistics": "AbstractLogger, CompositeLogger, StandardLogger",
        "manager.trackers": "MlflowLogger, TensorBoardLogger, WandbLogger",
        "": "logging.step_statistics as step_statistics",
    },
)
