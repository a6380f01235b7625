"""The command line: `orbit-ckpt` or `python -m orbit_ckpt.cli`; requires the extra `cli`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.cli import main
from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.cli.report.page import write_report

__all__ = ["main", "write_report"]

__getattr__, __dir__ = lazy_names(globals(), {"cli.report.page": "write_report"})

if __name__ == "__main__":
    main()
