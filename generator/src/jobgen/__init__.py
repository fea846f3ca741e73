"""Convert a SkyPilot job group to values of the Helm chart job-group, without access to a cluster."""

__version__ = "0.1.0"
