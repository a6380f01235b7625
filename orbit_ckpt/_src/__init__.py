"""The implementation; names outside this package are the public ones."""
