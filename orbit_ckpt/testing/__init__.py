"""What tests of programs that use orbit_ckpt need; nothing of the package imports it."""
