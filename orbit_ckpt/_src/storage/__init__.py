"""Bytes at rest: paths, atomic directories, key-value stores, zarr documents, batched I/O."""
