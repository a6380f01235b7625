"""The JSON documents of a checkpoint and what they say about its leaves."""
