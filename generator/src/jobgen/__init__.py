"""Turns a job group (SkyPilot YAML) into values of the Helm chart job-group. Pure functions; knows no cluster."""

__version__ = "0.1.0"
