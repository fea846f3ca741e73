"""Convert a SkyPilot job group to values of the Helm chart job-group, without access to a
cluster.
"""

from jobgen.contract import VERSION as __version__  # noqa: F401
