"""Array dtypes, chunk grids, regions, shardings and transfers."""
