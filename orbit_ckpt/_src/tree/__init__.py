"""Key paths, flattening and comparing pytrees; pure."""
