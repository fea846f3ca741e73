"""Checks of nodes and worlds: one file or folder each, found by judgement.registry."""
