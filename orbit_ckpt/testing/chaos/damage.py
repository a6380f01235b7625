"""Damage files of a checkpoint."""

from __future__ import annotations

import random
from pathlib import Path

from orbit_ckpt._src.errors import CheckpointNotFoundError
from orbit_ckpt.testing.damage import BitFlip


def flip_bits(path: str | Path, count: int = 1, *, seed: int = 0) -> list[str]:
    """Flip bits of a file, or of files in a directory; return which, for messages.

    Args:
        path: The file or directory.
        count: How many bits.
        seed: Chooses them: with the same seed, the same bits.

    Raises:
        CheckpointNotFoundError: There are no bytes.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    sizes = [file.stat().st_size for file in files]
    if not sum(sizes):
        raise CheckpointNotFoundError(f"{path} holds no bytes to flip; give what was saved.")
    rng = random.Random(seed)  # noqa: S311 - not cryptography
    flipped: list[str] = []
    for position in sorted(rng.sample(range(8 * sum(sizes)), count)):
        at, bit = divmod(position, 8)
        for file, size in zip(files, sizes, strict=True):
            if at < size:
                BitFlip(file.name, at, bit).apply(file.parent)
                flipped.append(f"bit {bit} of byte {at} of {file}")
                break
            at -= size
    return flipped
