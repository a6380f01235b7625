"""Save a vocabulary with parameters, and restore it without importing its handler.

Usage: pip install . examples/custom_item && python examples/custom_item/run.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
from vocabulary_item import VocabularyRestore, VocabularySave

import orbit_ckpt as ocp

WORDS = ["the", "cat", "sat"]

ELSEWHERE = """
import sys
import orbit_ckpt as ocp

assert "vocabulary_item" not in sys.modules
found = ocp.Checkpointer(ocp.CompositeHandler()).restore(sys.argv[1])
print(*found.vocabulary)
"""


def check(found: list[str], expected: list[str]) -> None:
    """Exit with an error unless the words are as expected."""
    if found != expected:
        sys.exit(f"expected {expected}, found {found}")


def main() -> None:
    """Save a checkpoint, and restore it in three ways."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "step_1"
        with ocp.AsyncCheckpointer(ocp.CompositeHandler()) as checkpointer:
            checkpointer.save(
                path,
                ocp.args.Composite(
                    params=ocp.args.StandardSave({"embedding": jnp.ones((3, 8))}),
                    vocabulary=VocabularySave(WORDS),
                ),
            )
            found = checkpointer.restore(path)
            check(found.vocabulary, WORDS)
            wanted = ocp.args.Composite(vocabulary=VocabularyRestore(count=2))
            check(checkpointer.restore(path, wanted).vocabulary, WORDS[:2])

        # in another process, the handler is found by its entry point
        command = [sys.executable, "-c", ELSEWHERE, path]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        check(output.split(), WORDS)
    print("Restored:", *WORDS)


if __name__ == "__main__":
    main()
