"""The vocabulary of a tokenizer as an item: a text file with one word per line."""

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
        """Write the words into an existing directory before returning."""
        broken = [word for word in args.words if "\n" in word]
        if broken:
            raise ValueError(f"a word cannot contain a line break: {broken[0]!r}")
        (directory / "words.txt").write_text("".join(f"{word}\n" for word in args.words))

    def restore(self, directory: Path, args: VocabularyRestore | None = None) -> list[str]:
        """Read the words, whose checksums have been verified."""
        words = (directory / "words.txt").read_text().split("\n")[:-1]
        return words if args is None else words[: args.count]

    def finalize(self, directory: Path) -> None:
        """Do nothing; called after all items are written."""

    def close(self) -> None:
        """Do nothing; the handler holds no resources."""


@register_with_handler(VocabularyHandler, for_save=True)
@dataclass
class VocabularySave(CheckpointArgs):
    """Arguments for saving.

    Attributes:
        words: The words in id order.
    """

    words: Sequence[str]


@register_with_handler(VocabularyHandler, for_restore=True)
@dataclass
class VocabularyRestore(CheckpointArgs):
    """Arguments for restoring.

    Attributes:
        count: Number of words, None for all.
    """

    count: int | None = None
