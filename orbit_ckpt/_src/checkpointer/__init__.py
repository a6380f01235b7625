"""Save or restore one checkpoint atomically."""
