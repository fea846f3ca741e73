"""What a training loop sees of its trackers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAMES = ("pluto", "mlflow")


class SettingsError(ValueError):
    """The tracking settings cannot work. Raised before anything starts, whether or not tracking is required."""


class TrackerError(RuntimeError):
    """A tracker failed, and --tracker-required was given. Never raised without it."""


@dataclass(frozen=True)
class World:
    """Who this process is among all of a run."""

    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    nodes: int = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of tracking; servers, projects and keys come from the environment, see docs/tracking.md."""
    group = parser.add_argument_group("tracking")
    group.add_argument(
        "--trackers",
        default="auto",
        metavar="NAMES",
        help="none, or some of pluto,mlflow; auto: those that the environment sets up (default)",
    )
    group.add_argument("--tracker-required", action="store_true", help="a tracker that fails ends the training")
    group.add_argument(
        "--tracker-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for the trackers at the end, and with --tracker-required at the start (default 30)",
    )


def open_trackers(args: argparse.Namespace, world: World) -> Tracker:
    """Read and check the settings of the trackers that this process reports to; nothing starts yet.

    Raises SettingsError for settings that cannot work: show its text and exit with 2.
    """
    return Tracker(chosen(args.trackers, os.environ), world, args.tracker_required, args.tracker_timeout)


def chosen(names: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The trackers that --trackers asks for."""
    if names == "auto":
        keys = ("PLUTO_API_KEY", "PLUTO_API_TOKEN", "MLOP_API_TOKEN")
        found = {
            "pluto": any(environment.get(key) for key in keys),
            "mlflow": bool(environment.get("MLFLOW_TRACKING_URI")),
        }
        return tuple(name for name in NAMES if found[name])
    wanted = tuple(name.strip() for name in names.split(",") if name.strip() not in ("", "none"))
    for name in wanted:
        if name not in NAMES:
            raise SettingsError(f"--trackers: there is no tracker {name!r}; there are: {', '.join(NAMES)}, auto, none")
    return wanted


class Tracker:
    """Reports to all chosen trackers. Make it with open_trackers; call every method on every rank."""

    def __init__(self, names: tuple[str, ...], world: World, required: bool, timeout_s: float):
        self.names, self.world, self.required, self.timeout_s = names, world, required, timeout_s

    def start(self, params: Mapping[str, object], run_name: str, run_id: str, folder: Path | None = None) -> None:
        """Begin to report; call it once, after the world is formed.

        `run_id` is the same in every attempt of a run. `folder` keeps what could not be sent (default /out/<run_id>).
        """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of one optimizer step. Takes microseconds, and never waits for a tracker."""

    def artifact(self, path: Path) -> None:
        """Upload a file at the end of the run; only rank 0's are taken."""

    def finish(self, status: str) -> None:
        """`finished`, `failed` or `saved`. Waits until all is sent, at most --tracker-timeout seconds."""
