"""Launcher of torchrun on every node of a run: preflight, supervision, one verdict with one cause."""
