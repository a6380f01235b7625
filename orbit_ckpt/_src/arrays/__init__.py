"""Arrays as the library sees them: dtypes, chunk grids, regions, shardings, transfers."""
