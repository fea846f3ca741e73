"""Experiment trackers: every node reports to one run, and no tracker stops or slows the training.

add_arguments(parser)
tracker = open_trackers(args, RankInfo(rank, local_rank, node_rank, world_size, nnodes))
tracker.start(params, run_name, run_id)
tracker.log(step, {"loss": 2.3})
tracker.finish("finished")  # or "failed", or "saved": stopped, to be started again
"""

from gpuworker.train.trackers.sender_process import TrackerError
from gpuworker.train.trackers.settings import SettingsError
from gpuworker.train.trackers.tracker import RankInfo, Tracker, add_arguments, open_trackers

__all__ = ["RankInfo", "SettingsError", "Tracker", "TrackerError", "add_arguments", "open_trackers"]
