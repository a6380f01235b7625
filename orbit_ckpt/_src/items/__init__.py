"""Item handlers: named parts of a checkpoint, each with a handler of its kind."""
