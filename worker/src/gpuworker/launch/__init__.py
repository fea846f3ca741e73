"""Launcher of a program on every node of a run: preflight, ranks, one verdict with one cause."""
