"""The part of the chaos kit that runs inside the tested program; it imports neither JAX nor pytest."""
