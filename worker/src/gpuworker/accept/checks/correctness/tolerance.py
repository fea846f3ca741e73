"""Largest difference of gradients that the order of additions may cause."""

TOLERANCE = 1e-10  # of the largest gradient
