"""What a training loop sees of its trackers. Each is a process of its own (sender.py), fed through a file (spool.py):
so a client that hangs, raises, takes signals or ends its process does so far from the training."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuworker.runtime.log import log
from gpuworker.train.trackers import spool
from gpuworker.train.trackers.settings import (
    PACKAGES,
    SettingsError,
    check,
    check_run_id,
    chosen,
    failures_left,
    installed,
    one_writer,
)

STATUSES = ("finished", "failed", "saved")
SAVED_S = 10.0  # a preempted pod has little time left, and its run goes on elsewhere
MARGIN_S = 5.0  # a sender ends itself in time; one that is frozen is ended after this
# They tell a client that it is one rank of many, and it would not wait for its own uploads.
RANK_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_PROCID")


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
    group.add_argument(
        "--tracker-ranks",
        choices=["node", "all"],
        default="node",
        help="who reports: the first rank of each node (default), or every rank",
    )
    group.add_argument(
        "--tracker-required",
        action="store_true",
        default=os.environ.get("GPU_CHARTS_TRACKERS_REQUIRED") == "true",
        help="a tracker that fails ends the training (also GPU_CHARTS_TRACKERS_REQUIRED=true)",
    )
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
    names = []
    for name in chosen(args.trackers, os.environ):
        check(name, os.environ)
        if not installed(name):
            text = f"the Python package {PACKAGES[name]} is not in this image; add it (docs/tracking.md says how)"
            if args.tracker_required or args.trackers != "auto":
                raise SettingsError(f"--trackers {name}: {text}")
            if world.rank == 0:
                log("TRACK", rank=0, tracker=name, state="off", why=text)
        elif reports(name, world, args.tracker_ranks):
            names.append(name)
    return Tracker(tuple(names), world, args.tracker_required, args.tracker_timeout)


def reports(name: str, world: World, ranks: str) -> bool:
    """Whether this process reports to this tracker."""
    if one_writer(name, os.environ):
        if world.rank == 0 and world.nodes > 1:
            log("TRACK", rank=0, tracker=name, state="rank 0 only", why="only one process may write to SQLite or files")
        return world.rank == 0
    return ranks == "all" or world.local_rank == 0


def keys_of(metrics: Mapping[str, float], world: World) -> dict[str, float]:
    """Rank 0 reports the run's own metrics, and every node its own below node-N/, other ranks below node-N/rank-R/."""
    node = f"node-{world.node_rank}/"
    if world.local_rank:
        return {f"{node}rank-{world.rank}/{key}": value for key, value in metrics.items()}
    own = {f"{node}{key}": value for key, value in metrics.items()} if world.nodes > 1 else {}
    return {**metrics, **own} if world.rank == 0 else own


class Tracker:
    """Reports to all chosen trackers. Make it with open_trackers; call every method on every rank."""

    def __init__(self, names: tuple[str, ...], world: World, required: bool, timeout_s: float):
        self.names, self.world, self.required, self.timeout_s = names, world, required, timeout_s
        self.senders: list[Sender] = []

    def start(self, params: Mapping[str, object], run_name: str, run_id: str, folder: Path | None = None) -> None:
        """Begin to report; call it once, after the world is formed. Waits for nothing, unless tracking is required.

        `run_id` is the same in every attempt of a run; PLUTO_RUN_ID wins over it for Pluto. `folder` keeps what could
        not be sent (default /out/<run_id>). Raises SettingsError for a run_id that Pluto would misread.
        """
        run_ids = {name: run_id for name in self.names}
        if "pluto" in run_ids:
            run_ids["pluto"] = os.environ.get("PLUTO_RUN_ID") or run_id
            check_run_id(run_ids["pluto"], "run id")
        for name in self.names:
            plan = {
                "tracker": name,
                "rank": self.world.rank,
                "node": self.world.node_rank,
                "node_metrics": self.world.local_rank == 0,
                "params": flat(params) if self.world.rank == 0 else {},
                "run_name": run_name,
                "run_id": run_ids[name],
                "failures_left": failures_left(os.environ),
                "timeout_s": self.timeout_s,
                "keep": str(folder or Path("/out") / run_id),
            }
            try:
                self.senders.append(Sender(plan))
            except OSError as error:
                self.trouble(name, f"its process does not start: {error}")
        if self.required:
            end = time.monotonic() + self.timeout_s
            for sender in self.senders:
                sender.wait_started(end)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of one optimizer step. Takes microseconds, and never waits for a tracker."""
        if not self.senders:
            return
        values = {key: float(value) for key, value in keys_of(metrics, self.world).items()}
        record = {"step": int(step), "time": time.time(), "metrics": values}
        for sender in self.senders:
            sender.spool.write(record)
            if sender.died() and not sender.told:
                sender.told = True
                self.trouble(sender.name, f"its process ended with {sender.process.returncode}; {sender.why()}")

    def artifact(self, path: Path) -> None:
        """Upload a file as it is when the tracker gets to it; only rank 0's are taken."""
        for sender in self.senders if self.world.rank == 0 else ():
            if Path(path).is_file():
                sender.spool.write({"artifact": str(Path(path).absolute())})
            else:
                self.trouble(sender.name, f"there is no file {path} to upload")

    def finish(self, status: str) -> None:
        """`finished`, `failed`, or `saved`: stopped, and will be started again. The first call counts.

        Waits until all is sent, at most --tracker-timeout seconds, or 10 for `saved`. Only rank 0 ends the run, and
        only if no attempt will follow; what could not be sent is kept in a file that a log line names.
        """
        if status not in STATUSES:
            raise ValueError(f"status {status!r}: one of {', '.join(STATUSES)}")
        senders, self.senders = self.senders, []
        wait_s = min(self.timeout_s, SAVED_S) if status == "saved" else self.timeout_s
        for sender in senders:
            sender.tell_end(status, wait_s)
        end = time.monotonic() + wait_s + MARGIN_S
        for sender in senders:
            if problem := sender.close(max(0.0, end - time.monotonic())):
                self.trouble(sender.name, problem)

    def trouble(self, name: str, why: str) -> None:
        if self.required:
            raise TrackerError(f"{name}: {why}")
        log("TRACK", rank=self.world.rank, tracker=name, state="failed", why=why)


class Sender:
    """A sender process, seen from the training."""

    def __init__(self, plan: dict):
        self.name, self.plan, self.told = plan["tracker"], plan, False
        # Local disk: PLUTO_DIR if the user has chosen a place, else $TMPDIR.
        place = os.environ.get("PLUTO_DIR") if self.name == "pluto" else None
        if place:
            os.makedirs(place, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-rank-{plan['rank']}-", dir=place or None))
        (self.folder / spool.PLAN).write_text(json.dumps(plan))
        self.spool = spool.Writer(self.folder)
        environment = {key: value for key, value in os.environ.items() if key not in RANK_VARIABLES}
        root = str(Path(__file__).parents[3])
        environment["PYTHONSAFEPATH"] = "1"  # a folder `mlflow` beside the program is not the client
        environment["PYTHONPATH"] = ":".join(filter(None, [root, environment.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuworker.train.trackers.sender", str(self.folder)],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # signals to the training's group are not for it
        )

    def died(self) -> bool:
        return self.process.poll() is not None

    def why(self) -> str:
        return spool.load_state(self.folder).get("why") or "it gave no reason"

    def wait_started(self, end: float) -> None:
        """Until the run exists, or TrackerError."""
        while not spool.load_state(self.folder).get("started"):
            if self.died() or time.monotonic() > end:
                why = self.why()
                self.process.kill()
                raise TrackerError(f"{self.name} could not be reached, and it is required: {why}")
            time.sleep(0.05)

    def tell_end(self, status: str, wait_s: float) -> None:
        self.spool.write({"end": status})
        self.spool.close()
        with contextlib.suppress(OSError):  # it has ended
            self.process.stdin.write(f"{wait_s}\n".encode())
            self.process.stdin.close()

    def close(self, wait_s: float) -> str:
        """Wait for the sender; what went wrong, or nothing. A sender that died or is frozen leaves its rest to us."""
        try:
            code = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # a client's uploader that hangs
        problem = ""
        if code == 1:
            problem = f"not everything was sent: {self.why()}"
        elif code:
            offset = spool.load_state(self.folder).get("delivered", 0)
            count, kept = spool.keep(self.folder, offset, Path(self.plan["keep"]))
            problem = f"its process ended with {code}; {count} records are kept in {kept}"
            if kept.parent == self.folder:
                return problem
        if self.spool.lost:
            problem = f"{problem}; {self.spool.lost} records are lost: {self.spool.why}".lstrip("; ")
        if not spool.load_state(self.folder).get("kept_here"):
            shutil.rmtree(self.folder, ignore_errors=True)
        return problem


def flat(params: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested settings as `optimizer.lr`; what JSON has no form for, as text."""
    found: dict[str, object] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        elif value is None or (
            isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
        ):
            found[f"{prefix}{key}"] = value
        else:
            found[f"{prefix}{key}"] = str(value)
    return found
