"""GGUF files as a format of orbit_ckpt, found by its entry point."""

from orbit_ckpt_gguf.format import GGUFFormat

__all__ = ["GGUFFormat"]
