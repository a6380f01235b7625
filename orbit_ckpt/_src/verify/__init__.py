"""Check every byte of checkpoints and report all damage."""
