"""Checks of nodes and worlds: one file or folder per check, found by gpuworker.judgement.registry."""
