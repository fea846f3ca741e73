"""Output formats of a fleet report."""
