"""Handlers written for Orbax keep the contracts, with its base classes and with those here."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from orbit_ckpt.testing import ItemHandlerContract, TypeHandlerContract
from tests.interop.libraries import OURS, UNCHANGED, Library


class TestRaggedHandler(TypeHandlerContract):
    library: ClassVar[Library] = OURS

    @override
    def handler(self) -> Any:
        return self.library.user.RaggedHandler()

    @override
    def values(self) -> list[object]:
        ragged = self.library.user.Ragged
        return [ragged([[1.0, 2.0], [], [3.0]]), ragged([[-0.0]]), ragged([[float("inf")] * 300])]


class TestRaggedHandlerOfOrbax(TestRaggedHandler):
    library = UNCHANGED


class TestPriceHandler(TypeHandlerContract):
    library: ClassVar[Library] = OURS

    @override
    def handler(self) -> Any:
        return self.library.user.PriceHandler()

    @override
    def values(self) -> list[object]:
        return [Decimal("1.25"), Decimal(-3), Decimal("12345678901234.56")]


class TestPriceHandlerOfOrbax(TestPriceHandler):
    library = UNCHANGED


class TestDateHandler(TypeHandlerContract):
    library: ClassVar[Library] = OURS

    @override
    def handler(self) -> Any:
        return self.library.user.DateHandler()

    @override
    def values(self) -> list[object]:
        return [np.datetime64("2024-02-29"), np.datetime64("1969-12-31")]

    @override
    def facts(self, value: object) -> dict[str, object]:
        del value
        return {}  # the handler inherits `metadata`, which describes the stored number


class TestDateHandlerOfOrbax(TestDateHandler):
    library = UNCHANGED


class TestNotesHandler(ItemHandlerContract):
    library: ClassVar[Library] = OURS

    @override
    def handler(self) -> Any:
        return self.library.user.NotesHandler()

    @override
    def values(self) -> list[object]:
        return ["Read me", "", "größe" * 1000]

    @override
    def save_args(self, value: Any) -> Any:
        return self.library.user.NotesSave(value)


class TestNotesHandlerOfOrbax(TestNotesHandler):
    library = UNCHANGED


class TestPickleHandler(ItemHandlerContract):
    library: ClassVar[Library] = OURS

    @override
    def handler(self) -> Any:
        return self.library.user.PickleHandler()

    @override
    def values(self) -> list[object]:
        return [{"a": {1, 2}, "b": np.arange(3)}, [b"bytes", None], "text"]


class TestPickleHandlerOfOrbax(TestPickleHandler):
    library = UNCHANGED
