"""kubectl runs: what becomes of the runs of the three charts."""
