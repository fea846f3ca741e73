"""Shared ground floor: contract, logging, process supervision, GPU inventory."""
