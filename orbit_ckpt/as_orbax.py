"""Run an unchanged program that imports Orbax: `python -m orbit_ckpt.as_orbax program.py`."""

from __future__ import annotations

from orbit_ckpt._src.run_as_orbax import run_as_orbax

__all__: list[str] = []

if __name__ in {"__main__", "__mp_main__"}:
    run_as_orbax(globals())
