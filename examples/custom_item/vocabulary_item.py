"""The vocabulary of a tokenizer as an item of a checkpoint: a text file, one word a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orbit_ckpt.args import CheckpointArgs, register_with_handler


class VocabularyHandler:
    """Saves and restores a list of words."""

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; it must never change."""
        return "vocabulary_item.VocabularyHandler"

    def save(self, directory: Path, args: VocabularySave) -> None:
        """Write the words into a directory that exists, before this returns."""
        broken = [word for word in args.words if "\n" in word]
        if broken:
            raise ValueError(f"a word cannot have two lines: {broken[0]!r}")
        (directory / "words.txt").write_text("".join(f"{word}\n" for word in args.words))

    def restore(self, directory: Path, args: VocabularyRestore | None = None) -> list[str]:
        """Read the words, which have been compared with what was saved."""
        words = (directory / "words.txt").read_text().split("\n")[:-1]
        return words if args is None else words[: args.count]

    def finalize(self, directory: Path) -> None:
        """Do what must be done once all items are written; there is nothing."""

    def close(self) -> None:
        """Give up resources; there are none."""


@register_with_handler(VocabularyHandler, for_save=True)
@dataclass
class VocabularySave(CheckpointArgs):
    """What to save.

    Attributes:
        words: The words in the order of their ids.
    """

    words: Sequence[str]


@register_with_handler(VocabularyHandler, for_restore=True)
@dataclass
class VocabularyRestore(CheckpointArgs):
    """What to restore.

    Attributes:
        count: How many words; None for all.
    """

    count: int | None = None
