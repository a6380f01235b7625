"""Rules, and the engine that applies them to trees; no files, no event loop."""
