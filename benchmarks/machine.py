"""Describe the machine of a run."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

_PACKAGES = ("jax", "jaxlib", "numpy", "tensorstore", "orbax-checkpoint", "safetensors", "torch")


def describe_machine() -> dict[str, str]:
    """Return processor, memory, kernel and versions, as far as they are known."""
    memory_kib = _find("/proc/meminfo", r"MemTotal:\s*(\d+)")
    facts: dict[str, str | None] = {
        "cpu": _find("/proc/cpuinfo", r"model name\s*: (.+)") or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{int(memory_kib) / 2**20:.0f} GiB" if memory_kib else None,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    facts |= {name: _version(name) for name in _PACKAGES}
    return {name: value for name, value in facts.items() if value}


def _find(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1].strip() if found else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
