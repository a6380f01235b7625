"""The part of the chaos kit that runs in the tested program; it imports no JAX and no pytest."""
