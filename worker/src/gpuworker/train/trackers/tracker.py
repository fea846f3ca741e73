"""Trackers as the training loop uses them.

Each tracker's client runs in a separate process (sender.py) that reads a file (spool.py). So a client that hangs,
raises, handles signals or exits does not affect the training.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.option_types import non_negative_number
from gpuworker.train.trackers import settings
from gpuworker.train.trackers.redact import redact
from gpuworker.train.trackers.sender_process import SenderProcess, TrackerError

KEEP_ONE = ("mlflow",)  # trackers that keep one of two equal points
STATUSES = ("finished", "failed", "saved")
SAVED_S = 10.0  # a preempted pod has little time left, and another attempt continues its run
MARGIN_S = 5.0  # a sender exits in time; a frozen one is killed after this


@dataclass(frozen=True)
class RankInfo:
    """Rank of this process, and size of the run."""

    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    nnodes: int = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tracking flags. Servers, projects and keys are read from the environment, see docs/tracking.md."""
    # fmt: off
    add = parser.add_argument_group("tracking").add_argument
    add("--trackers", default="auto", metavar="NAMES",
        help="none, or any of pluto,mlflow; auto: those that the environment configures (default: auto)")
    add("--tracker-ranks", choices=["node", "all"], default="node",
        help="ranks that report: the first rank of each node, or all (default: node)")
    add("--tracker-required", action="store_true", default=os.environ.get(settings.REQUIRED) == "true",
        help="fail if a tracker fails (default: tracking.required of the chart ddp-run)")
    add("--tracker-timeout", type=non_negative_number, default=30.0, metavar="SECONDS",
        help="wait for the trackers at the end, and with --tracker-required at the start (default: 30)")
    # fmt: on


def open_trackers(args: argparse.Namespace, rank_info: RankInfo) -> Tracker:
    """Read and check the settings of the trackers that this process reports to. Starts nothing.

    Raises SettingsError for settings that cannot work. Show its text and exit with 2.
    """
    names, environment = [], settings.stripped(os.environ)
    selected = settings.selected(args.trackers, environment)
    if args.tracker_required and not selected:
        raise settings.SettingsError(
            f"--tracker-required, but no tracker is selected (--trackers {args.trackers}): set MLFLOW_TRACKING_URI or "
            f"{settings.PLUTO_KEYS[0]}, or train without --tracker-required (in the chart: tracking.required)"
        )
    for name in selected:
        settings.check(name, environment)
        if not settings.installed(name):
            text = (
                f"the Python package {settings.PACKAGES[name]} is not in this image; install it, see docs/tracking.md"
            )
            # The chart sets REQUIRED, to true or false, if its values name a tracker.
            if args.tracker_required or args.trackers != "auto" or settings.REQUIRED in os.environ:
                raise settings.SettingsError(f"{name}: {text}, or train without it (--trackers none)")
            if rank_info.rank == 0:
                log(Tag.TRACK, rank=0, tracker=name, state="off", why=text)
        elif reports_to(name, rank_info, args.tracker_ranks):
            names.append(name)
    return Tracker(tuple(names), rank_info, args.tracker_required, args.tracker_timeout)


def reports_to(name: str, info: RankInfo, ranks: str) -> bool:
    """Whether this process reports to this tracker."""
    if settings.has_single_writer(name, settings.stripped(os.environ)):
        if info.rank == 0 and info.nnodes > 1:
            why = "only one process may write to SQLite or files"
            log(Tag.TRACK, rank=0, tracker=name, state="rank 0 only", why=why)
        return info.rank == 0
    return ranks == "all" or info.local_rank == 0


def metric_keys(metrics: Mapping[str, float], info: RankInfo) -> dict[str, float]:
    """Metrics under the names that they have in a run of all ranks.

    Rank 0 reports the run's metrics, the first rank of every node adds node-N/, and other ranks add node-N/rank-R/.
    """
    node = f"node-{info.node_rank}/"
    if info.local_rank:
        return {f"{node}rank-{info.rank}/{key}": value for key, value in metrics.items()}
    of_node = {f"{node}{key}": value for key, value in metrics.items()} if info.nnodes > 1 else {}
    return {**metrics, **of_node} if info.rank == 0 else of_node


class Tracker:
    """Reports to all selected trackers. Create it with open_trackers, and call every method on every rank."""

    def __init__(self, names: tuple[str, ...], rank_info: RankInfo, required: bool, timeout_s: float):
        self.names, self.rank_info, self.required, self.timeout_s = names, rank_info, required, timeout_s
        self.senders: list[SenderProcess] = []

    def start(self, params: Mapping[str, object], run_name: str, run_id: str, folder: Path | None = None) -> None:
        """Start reporting. Call it once, after the rendezvous. It does not wait, unless tracking is required.

        `run_id` is the same in every attempt of a run; for Pluto, PLUTO_RUN_ID overrides it. Unsent records go to
        `folder` (default /out/<run_id>). Raises SettingsError for a run_id that Pluto would misinterpret.
        """
        run_ids = {name: run_id for name in self.names}
        if "pluto" in run_ids:
            run_ids["pluto"] = os.environ.get("PLUTO_RUN_ID", "").strip() or run_id
            settings.check_run_id(run_ids["pluto"], "run id")
        for name in self.names:
            config = {
                "tracker": name,
                "rank": self.rank_info.rank,
                "node": self.rank_info.node_rank,
                "node_metrics": self.rank_info.local_rank == 0,
                "params": flatten(params) if self.rank_info.rank == 0 else {},
                "run_name": run_name,
                "run_id": run_ids[name],
                "failures_left": settings.failures_left(os.environ),
                "timeout_s": self.timeout_s,
                "unsent_folder": str(folder or Path("/out") / run_id),
            }
            try:
                self.senders.append(SenderProcess(config))
            except OSError as error:
                self.fail(name, f"its process does not start: {error}")
        if self.required:
            end = time.monotonic() + self.timeout_s
            for sender in list(self.senders):
                try:
                    sender.wait_started(end)
                except TrackerError:
                    # Its end is no second failure, and it has no records to keep.
                    self.senders.remove(sender)
                    sender.discard()
                    raise

    def log(self, step: int, metrics: Mapping[str, float], at: float | None = None, again: bool = False) -> None:
        """Report metrics of one optimizer step. Takes microseconds and never waits for a tracker.

        `again`: an earlier attempt may have reported them, with the same time `at`. Only trackers that then keep one of
        both receive them (MLflow does).
        """
        if not self.senders:
            return
        values = {key: float(value) for key, value in metric_keys(metrics, self.rank_info).items()}
        record = {"step": int(step), "time": time.time() if at is None else at, "metrics": values}
        for sender in self.senders:
            if again and sender.name not in KEEP_ONE:
                continue
            sender.spool.write(record)
            if sender.has_exited() and not sender.exit_logged:
                sender.exit_logged = True
                self.fail(sender.name, f"its process exited with {sender.process.returncode}: {sender.reason()}")

    def artifact(self, path: Path) -> None:
        """Upload a file in the background. Only files of rank 0 are uploaded."""
        for sender in self.senders if self.rank_info.rank == 0 else ():
            if Path(path).is_file():
                sender.spool.write({"artifact": str(Path(path).absolute())})
            else:
                self.fail(sender.name, f"the file to upload does not exist: {path}")

    def finish(self, status: str) -> None:
        """End reporting with the status `finished`, `failed`, or `saved` (stopped, to be started again).

        Only the first call has an effect. Waits until everything is sent, at most --tracker-timeout seconds, or 10 for
        `saved`. Only rank 0 ends the run, and only if no attempt follows. Unsent records are kept in a file, which the
        log names. With `failed` it never raises TrackerError: the caller reports why the run has failed.
        """
        if status not in STATUSES:
            raise ValueError(f"status {status!r}: use one of {', '.join(STATUSES)}")
        senders, self.senders = self.senders, []
        wait_s = min(self.timeout_s, SAVED_S) if status == "saved" else self.timeout_s
        for sender in senders:
            sender.send_end(status, wait_s)
        end = time.monotonic() + wait_s + MARGIN_S
        for sender in senders:
            if problem := sender.close(max(0.0, end - time.monotonic())):
                self.fail(sender.name, problem, status)

    def fail(self, name: str, why: str, status: str = "") -> None:
        if self.required and status != "failed":
            raise TrackerError(f"{name}: {why}")
        log(Tag.TRACK, rank=self.rank_info.rank, tracker=name, state="failed", why=redact(why))


def flatten(params: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested settings with keys such as `optimizer.lr`. Values that JSON cannot represent become text."""
    found: dict[str, object] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            found.update(flatten(value, f"{prefix}{key}."))
        elif value is None or (
            isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
        ):
            found[f"{prefix}{key}"] = value
        else:
            found[f"{prefix}{key}"] = str(value)
    return found
