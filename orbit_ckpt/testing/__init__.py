"""Fakes for tests of programs that use orbit_ckpt; the package never imports this module."""
