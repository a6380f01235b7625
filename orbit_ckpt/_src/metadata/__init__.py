"""The JSON documents of a checkpoint and the metadata of its leaves."""
