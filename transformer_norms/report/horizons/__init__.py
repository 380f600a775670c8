"""Variants that differ only in their horizon: prices, and comparisons at an equal budget."""
