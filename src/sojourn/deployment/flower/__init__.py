"""Everything that imports Flower."""
