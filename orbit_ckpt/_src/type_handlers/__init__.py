"""Type handlers: how leaves of each type are written and read."""
