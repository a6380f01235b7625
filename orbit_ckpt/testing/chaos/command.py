"""A script with all that its process needs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orbit_ckpt.testing import hook
from orbit_ckpt.testing.hook.faults import VARIABLE, Fault, Plan

SITE = Path(hook.__file__).with_name("site")
"""The directory whose `sitecustomize` installs the hook."""

PACKAGES = Path(hook.__file__).parents[3]
"""Where this package is imported from."""


@dataclass(frozen=True, slots=True)
class Command:
    """A script with all that its process needs.

    Attributes:
        script: The file.
        arguments: What it finds in `sys.argv`.
        directory: Its working directory; only changes below it count.
        environment: All its variables.
        preload: What its fork server has imported; nothing to start it without one.
    """

    script: Path
    arguments: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]
    preload: tuple[str, ...] = ()

    def shell(self, fault: Fault | None = None) -> str:
        """Return the line for a shell that runs it, in its directory.

        Args:
            fault: What it is to meet with.
        """
        settings = ""
        if fault is not None:
            plan = Plan(".", (fault,)).encode()
            settings = (
                f"{VARIABLE}={shlex.quote(plan)} PYTHONPATH={shlex.quote(str(SITE))}:$PYTHONPATH "
            )
        return settings + shlex.join([sys.executable, str(self.script), *self.arguments])
