"""Contenders with faults, for the benchmarks to find."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import jax
import numpy as np

from benchmarks.contenders.bare import Bare


class Liar(Bare):
    """Loads one bit wrong."""

    def load_numpy(self, path: Path) -> object:
        tree = super().load_numpy(path)
        jax.tree.leaves(tree)[-1].reshape(-1).view(np.uint8)[0] ^= 1
        return tree


class Dying(Bare):
    """Is killed while it loads."""

    def load_numpy(self, path: Path) -> object:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().load_numpy(path)


class Raising(Bare):
    """Cannot save."""

    def save(self, path: Path) -> None:
        raise OSError(f"nowhere to put {path.name}")


class Forgetful(Bare):
    """Trains, but saves nothing."""

    def saves(self, directory: Path) -> ForgetfulSaves:  # noqa: ARG002 - a contender's method
        return ForgetfulSaves()


class ForgetfulSaves:
    """Loads zeros."""

    def save(self, step: int, tree: object) -> None:
        pass

    def wait(self) -> None:
        pass

    def load(self, step: int, like: object) -> object:  # noqa: ARG002 - a contender's method
        return jax.tree.map(lambda leaf: leaf * 0, like)

    def close(self) -> None:
        pass
