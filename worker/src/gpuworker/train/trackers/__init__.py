"""Experiment trackers: every node logs to one run, and no tracker ever stops or slows the training.

add_arguments(parser)
tracker = open_trackers(args, World(rank, local_rank, node_rank, world_size, nodes))
tracker.start(params, run_name, run_id)
tracker.log(step, {"loss": 2.3})
tracker.finish("finished")  # or "failed", or "saved": stopped, and to be started again
"""

from gpuworker.train.trackers.settings import SettingsError
from gpuworker.train.trackers.tracker import Tracker, TrackerError, World, add_arguments, open_trackers

__all__ = ["SettingsError", "Tracker", "TrackerError", "World", "add_arguments", "open_trackers"]
