"""Item handlers with one bug each, and the tests that must find it; see `test_seeded_bugs.py`."""

from __future__ import annotations

import contextlib
import json
import tempfile
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from orbit_ckpt.args import CheckpointArgs, register_with_handler
from orbit_ckpt.testing import ItemHandlerContract

FILE = "words.json"


class Words:
    """Saves and restores a list of words, as it should."""

    def save(self, directory: Path, args: WordsSave) -> None:
        (directory / FILE).write_text(json.dumps(args.words))

    def restore(self, directory: Path, args: WordsRestore | None = None) -> list[str]:
        words = json.loads((directory / FILE).read_text())
        return words if args is None else words[: args.count]

    def finalize(self, directory: Path) -> None:
        pass

    def close(self) -> None:
        pass


@register_with_handler(Words, for_save=True)
@dataclass
class WordsSave(CheckpointArgs):
    words: list[str]


@register_with_handler(Words, for_restore=True)
@dataclass
class WordsRestore(CheckpointArgs):
    count: int | None = None


class BrokenWords(ItemHandlerContract):
    """Tests of a broken handler of words."""

    broken: type[Words]

    @override
    def handler(self) -> Any:
        return self.broken()

    @override
    def values(self) -> list[object]:
        return [["the", "cat", "sat"], ["a", "b"]]

    @override
    def save_args(self, value: Any) -> Any:
        return WordsSave(value)

    @override
    def restore_args(self) -> Any:
        return WordsRestore()

    @override
    def targets(self, value: Any) -> Any:
        return [(WordsRestore(1), value[:1])]


class Sorted(Words):
    @override
    def save(self, directory: Path, args: WordsSave) -> None:
        args.words.sort()
        super().save(directory, args)


class TestChangedItem(BrokenWords):
    """A save does not change what it is given."""

    broken = Sorted


class Late(Words):
    async def async_save(self, directory: Path, args: WordsSave) -> list[Future[None]]:
        return [Late.Writing(directory / FILE, args)]

    class Writing(Future[None]):
        def __init__(self, file: Path, args: WordsSave) -> None:
            super().__init__()
            self.file = file
            self.args = args

        @override
        def result(self, timeout: float | None = None) -> None:
            self.file.write_text(json.dumps(self.args.words))


class TestAliasedItem(BrokenWords):
    """A background save stores the values of its start, whatever happens to them afterwards."""

    broken = Late


class Unrenamed(Words):
    @override
    def save(self, directory: Path, args: WordsSave) -> None:
        (directory / "words.tmp").write_text(json.dumps(args.words))


class TestForgottenFinalizeOfAnItem(BrokenWords):
    """What is loaded is what was saved: types, dtypes, shapes, shardings, bits."""

    broken = Unrenamed


class Silent(Words):
    @override
    def save(self, directory: Path, args: WordsSave) -> None:
        with contextlib.suppress(OSError):
            super().save(directory, args)


class TestSwallowedErrorOfAnItem(BrokenWords):
    """A save whose write fails raises an error and keeps the checkpoint before it."""

    broken = Silent


class Deaf(Words):
    @override
    def restore(self, directory: Path, args: WordsRestore | None = None) -> list[str]:
        return super().restore(directory)


class TestDeafToArguments(BrokenWords):
    """A restore returns what its arguments ask for."""

    broken = Deaf


class Curious(Words):
    @override
    def restore(self, directory: Path, args: WordsRestore | None = None) -> list[str]:
        if (directory.parent / "note").exists():
            json.loads((directory.parent / "note" / "metadata").read_text())
        return super().restore(directory, args)


class TestReadsOtherItems(BrokenWords):
    """A restore of one item reads no file of another."""

    broken = Curious


class Outside(Words):
    @override
    def save(self, directory: Path, args: WordsSave) -> None:
        super().save(directory, args)
        (directory.parent / "words.txt").write_text(" ".join(args.words))


class TestWritesBesideTheItem(BrokenWords):
    """A save writes into its own directory only."""

    broken = Outside


class Absolute(Words):
    @override
    def save(self, directory: Path, args: WordsSave) -> None:
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            json.dump(args.words, file)
        (directory / "link").write_text(file.name)

    @override
    def restore(self, directory: Path, args: WordsRestore | None = None) -> list[str]:
        return json.loads(Path((directory / "link").read_text()).read_text())


class TestStoredElsewhere(BrokenWords):
    """Two saves of the same values store the same data."""

    broken = Absolute


class Described(Words):
    def metadata(self, directory: Path) -> object:
        return {"words": len(self.restore(directory))}


class TestMetadataThatRestores(BrokenWords):
    """Metadata of an item is found without restoring it."""

    broken = Described
