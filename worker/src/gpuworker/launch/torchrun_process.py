"""The torchrun process of this node: its early start, its command line, its messages and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from gpuworker.launch import etcd, torchrun_args
from gpuworker.launch.config import STATE_FOLDER, LaunchConfig
from gpuworker.launch.failure_causes import Verdict, of_text
from gpuworker.launch.local_ranks import LocalRanks
from gpuworker.launch.protocol import Go, RankFailure
from gpuworker.launch.rank_state import signal_name
from gpuworker.runtime.processes import descendants, kill, state

READY = "torch is imported"
READ_BYTES = 65536
# Time from SIGTERM to SIGKILL after a failure: that of a bare torchrun. A stop has the grace period instead.
TERMINATE_S = 30
STUCK_S = 2  # after which a rank that waits in a collective is ended
SIGNALLED = re.compile(r"Received (?:Signals\.)?(\w+) death signal")  # torchrun's own words


def working_folder() -> Path:
    """A new folder for the sockets and scripts of this launch, in the first place that can be written."""
    errors = []
    for place in (tempfile.gettempdir() if os.environ.get("TMPDIR") else "/tmp", "/tmp", "/dev/shm", os.getcwd()):
        try:
            folder = Path(tempfile.mkdtemp(prefix="ddp-launch-", dir=place))
            (folder / "probe").write_bytes(bytes(65536))
            (folder / "probe").unlink()
            return folder
        except OSError as error:
            errors.append(f"{place}: {error.strerror}")
    raise Verdict("node-unfit", f"no folder for temporary files: {'; '.join(dict.fromkeys(errors))}", "preflight")


class TorchrunProcess:
    """torchrun on this node. Its process starts early, to import torch; `start` gives it something to run."""

    def __init__(self, config: LaunchConfig):
        self.config = config
        self.folder = working_folder()
        self.lines: deque[str] = deque(maxlen=60)  # torchrun's own
        self.partial_line = b""
        self.ready = self.started = False
        self.signal = ""  # that somebody sent to torchrun itself
        self.output_folder: Path | None = None  # for what outlives the run
        for name in ("torchrun_preload.py", "rank_runner.py", "rank_wrapper.py"):
            (self.folder / name).write_bytes(pkgutil.get_data("gpuworker.launch", name))
        modules = self.folder / "modules"
        if config.backend == "etcd":
            etcd.install_client(modules)
        self.ranks = LocalRanks(config, self.folder)
        self.process = subprocess.Popen(
            [sys.executable, self.folder / "torchrun_preload.py", READY],
            env=torchrun_args.preload_environment(config, str(modules)),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        os.set_blocking(self.process.stderr.fileno(), False)
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.process.stderr, self.read_lines)

    def start(self, go: Go, master: str, interface: str) -> list[str]:
        """Let torchrun begin. Returns its arguments. `master`: node 0's address."""
        config = self.config
        self.started, self.ranks.started_at = True, time.monotonic()
        self.output_folder = self.folder
        if config.output_dir:
            self.output_folder = Path(config.output_dir) / STATE_FOLDER / go.rendezvous_id
        with contextlib.suppress(OSError):  # the disk is full, which the program will report
            self.output_folder.mkdir(parents=True, exist_ok=True)
        arguments = torchrun_args.arguments(config, go.rendezvous_id, master, str(self.folder / "rank_runner.py"))
        environ = torchrun_args.environment(config, go.attempt, interface, str(self.folder), str(self.output_folder))
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its output shows why
            # By pipe and not by file: the environment may hold credentials. The pipe stays open: its end ends torchrun.
            self.process.stdin.write(json.dumps({"arguments": arguments, "environ": environ}).encode() + b"\n")
            self.process.stdin.flush()
        return arguments

    def read_lines(self) -> None:
        """Lines that torchrun itself prints; one read per turn, so that a flood cannot hold up the launcher."""
        try:
            data = os.read(self.process.stderr.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.loop.remove_reader(self.process.stderr)
        *whole, self.partial_line = (self.partial_line + data).split(b"\n")
        self.partial_line = self.partial_line[-READ_BYTES:]
        for line in whole:
            text = line.decode(errors="replace")
            if text == READY:
                self.ready = True
                continue
            self.lines.append(text)
            if found := SIGNALLED.search(text):
                self.signal = signal_name(int(found[1])) if found[1].isdigit() else found[1]
            if self.config.debug or self.config.torchrun_output:
                print(text, flush=True)

    def failure(self) -> RankFailure | None:
        """The failure of torchrun itself: it has ended, and not because its ranks have."""
        code = self.process.poll()
        if code is None:
            return None
        self.ranks.drain()  # a rank reports its end before torchrun sees it, but a busy launcher may not have read it
        if self.ranks.all_ended:
            return None
        if any(rank.code is not None for rank in self.ranks.states.values()) and code > 0:
            return None  # it reports the end of a rank, whose own report says more
        with contextlib.suppress(OSError):
            self.read_lines()
        ended = f"torchrun was ended by {signal_name(-code)}" if code < 0 else f"torchrun ended with {code}"
        if code < 0 and self.ranks.formed:
            return RankFailure("killed", None, ended)
        errors = [line for line in self.lines if re.search(r"Error|error:|Exception", line)]
        last = errors[-1].strip()[:400] if errors else next((line for line in reversed(self.lines) if line), "")
        detail = f"{ended}: {last or 'it printed nothing'}"
        if not self.started:
            return RankFailure("node-unfit", None, f"torch cannot be imported: {detail}", "preflight")
        cause = of_text("\n".join(self.lines))
        phase, unknown = ("run", "program-failed") if self.ranks.formed else ("rendezvous", "world-not-formed")
        return RankFailure(cause.key if cause else unknown, None, detail, phase)

    async def end(self, reason: str, stopped: bool = False) -> None:
        """End the ranks and torchrun: SIGTERM, then SIGKILL after a time. `stopped`: the grace period is over.

        A rank that waits in a collective cannot run a handler of SIGTERM, and its world has ended: it gets less time.
        """
        self.ranks.terminate()
        start = time.monotonic()
        grace_s = 0 if stopped else min(TERMINATE_S, self.config.timeouts["grace-period"])
        checked = grace_s <= STUCK_S
        # A stop that arrives meanwhile gives the ranks its own grace period.
        while self.ranks.running() and time.monotonic() < max(start + grace_s, self.ranks.stop_deadline):
            await asyncio.sleep(0.05)
            if not checked and not self.ranks.stop_deadline and time.monotonic() > start + STUCK_S:
                checked = True
                stacks = await self.ranks.collect()
                stuck = [int(rank) for rank, where in stacks.ranks.items() if where.startswith("waits in ")]
                self.ranks.kill("it waits in a collective of a world that has ended", stuck)
        self.ranks.kill(reason)
        end = time.monotonic() + 2
        while not self.ranks.all_ended and self.ranks.formed and time.monotonic() < end:
            await asyncio.sleep(0.02)
        await self.end_torchrun(2 if grace_s else 0.5)

    async def end_torchrun(self, seconds: float) -> None:
        """End torchrun itself, whose ranks have ended."""
        self.ranks.release()
        if not self.started:
            kill([self.process.pid] if self.process.poll() is None else [], signal.SIGKILL)
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end and state(self.process.pid) not in ("T", "t"):
            await asyncio.sleep(0.05)
        if self.process.poll() is None:
            kill([self.process.pid, *descendants(self.process.pid)], signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process in the kernel's hands
                self.process.wait(1)

    def close(self) -> None:
        """Remove what this launch made. Its processes have ended."""
        self.loop.remove_reader(self.process.stderr)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.ranks.close()
        if self.output_folder and self.output_folder != self.folder:
            with contextlib.suppress(OSError):  # it is not empty, or another node on the same volume removed it
                self.output_folder.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)
