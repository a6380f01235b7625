"""Orbax's own format, which is this library's."""
