"""What the package uses of etils, whose path types need its own checker plug-in."""
