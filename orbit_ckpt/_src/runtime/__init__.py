"""The runtime of saves and restores: event loop, byte budget, commits, processes."""
