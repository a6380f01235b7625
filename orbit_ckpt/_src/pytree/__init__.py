"""Plan and run the save or restore of one tree."""
