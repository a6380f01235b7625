"""Compare two stored trees."""
