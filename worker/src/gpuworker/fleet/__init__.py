"""Collector of the reports of all nodes, and the result of their judgement in many forms."""
