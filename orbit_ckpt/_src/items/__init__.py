"""Item handlers, one per kind of item: the named parts of a checkpoint."""
