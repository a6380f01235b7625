"""What saves and restores run on: an event loop, a byte budget, commits, processes."""
