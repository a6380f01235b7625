"""Orbax's v1 API over the engine: states, named checkpointables, contexts."""
