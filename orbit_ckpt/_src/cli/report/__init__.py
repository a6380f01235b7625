"""The page about a checkpoint or a run: its data, the file it is written to, and a live server."""
