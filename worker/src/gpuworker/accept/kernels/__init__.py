"""Timed GPU and CPU kernels that the checks measure with."""
