"""Formats with one bug each, and the tests that must find it; see `test_seeded_bugs.py`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from orbit_ckpt._src.formats.safetensors.read import SafetensorsFormat
from orbit_ckpt.formats import StoredTree, WriteRequest
from orbit_ckpt.testing import WritableFormatContract


class BrokenFormat(WritableFormatContract):
    """Tests of a broken reader and writer of safetensors."""

    has_checksums = False
    broken: type[SafetensorsFormat]

    @override
    def format(self) -> Any:
        return self.broken()

    @override
    def contents(self) -> list[object]:
        large = np.arange(1 << 18, dtype=np.float32)
        return [{"large": large, "small": np.arange(3)}, {"w": np.arange(6)}]

    @override
    def path_in(self, directory: Path, name: str) -> Path:
        return directory / f"{name}.safetensors"


class Credulous(SafetensorsFormat):
    @override
    def sniff(self, path: Path) -> str | None:
        return None


class TestRecognizesEverything(BrokenFormat):
    """A format says why it does not recognize another file, and never raises an error."""

    broken = Credulous


class Nervous(SafetensorsFormat):
    @override
    def sniff(self, path: Path) -> str | None:
        if path.read_bytes()[8:9] != b"{":
            return "no header"
        return super().sniff(path)


class TestSniffRaises(BrokenFormat):
    """A format says why it does not recognize another file, and never raises an error."""

    broken = Nervous


class Thorough(SafetensorsFormat):
    @override
    def open(self, path: Path) -> StoredTree:
        if path.is_file():
            path.read_bytes()
        return super().open(path)


class TestReadsTheWholeFile(BrokenFormat):
    """Metadata and a load of one leaf read less than a large array beside it."""

    broken = Thorough


class Hasty(SafetensorsFormat):
    @override
    def open(self, path: Path) -> StoredTree:
        if path.is_file() and path.stat().st_size < 100:
            raise KeyError("header")
        return super().open(path)


class TestOtherErrors(BrokenFormat):
    """Damaged files raise a CheckpointError, or are loaded; no other error escapes."""

    broken = Hasty


class Careless(SafetensorsFormat):
    @override
    def write(self, request: WriteRequest) -> None:
        if request.path.exists():
            os.unlink(request.path)
        super().write(request)


class TestReplacesUnasked(BrokenFormat):
    """Nothing that exists is replaced unless the request says so."""

    broken = Careless


class TestDeletesFirst(BrokenFormat):
    """A save whose write fails raises an error and keeps the checkpoint before it."""

    broken = Careless


class TestClaimsChecksums(BrokenFormat):
    """Damaged data raises a CheckpointError and is never returned."""

    has_checksums = True
    broken = SafetensorsFormat
