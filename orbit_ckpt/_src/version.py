"""The version of the package, also of what is built from it."""

__version__ = "0.1.0"
