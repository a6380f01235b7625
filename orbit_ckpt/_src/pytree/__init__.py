"""Plan and run the save or restore of a tree."""
