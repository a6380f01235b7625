"""The version of the package, also used by the build."""

__version__ = "0.1.0"
