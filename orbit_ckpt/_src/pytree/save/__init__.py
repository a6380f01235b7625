"""Plan and run the save of one tree."""
