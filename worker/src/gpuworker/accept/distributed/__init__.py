"""Ranks of a world: identity, results past the collectives under test, and a world on one node."""
