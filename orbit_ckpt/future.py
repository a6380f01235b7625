"""Futures that handlers return from `serialize` and `async_save`, under Orbax's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.runtime.futures import (
        ChainedFuture,
        CommitFutureAwaitingContractedSignals,
        Future,
        NoopFuture,
    )

__all__ = ["ChainedFuture", "CommitFutureAwaitingContractedSignals", "Future", "NoopFuture"]

__getattr__, __dir__ = lazy_names(globals(), {"runtime.futures": ", ".join(__all__)})
