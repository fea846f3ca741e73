"""Acceptance: checks of nodes and of worlds, their verdicts, and the report."""
