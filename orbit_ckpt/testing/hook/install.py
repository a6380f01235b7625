"""Install the hook into this process, if its environment asks for it."""

from __future__ import annotations

import os

from orbit_ckpt.testing.hook.faults import VARIABLE, Plan


def install_from_environment() -> None:
    """Install the hook for the plan in the environment, which is then removed from it.

    Programs that this one starts are thus left alone.
    """
    text = os.environ.pop(VARIABLE, None)
    if text is not None:
        from orbit_ckpt.testing.hook.director import Director  # noqa: PLC0415 - rarely needed
        from orbit_ckpt.testing.hook.files import intercept  # noqa: PLC0415 - likewise
        from orbit_ckpt.testing.hook.library import watch_library  # noqa: PLC0415 - likewise

        director = Director(Plan.decode(text))
        intercept(director)
        watch_library(director, director.phases)
