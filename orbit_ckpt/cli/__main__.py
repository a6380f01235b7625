"""`python -m orbit_ckpt.cli`."""

from orbit_ckpt.cli import main

main()
