"""Type handlers: they write and read leaves of each type."""
