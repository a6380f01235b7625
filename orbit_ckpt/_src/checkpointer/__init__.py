"""One atomic save or restore."""
