"""The process that sends one rank's records to one tracker: python -m gpuworker.train.trackers.sender FOLDER

It tries for as long as the training runs, however long the server is away. The training ends it with a line on its
standard input: how many seconds it still has. If the training dies, the line is missing, and the run has failed.

    python -m gpuworker.train.trackers.sender --resend FILE

sends what an earlier run could not; the environment must hold the server and the key again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from gpuworker.runtime.log import log
from gpuworker.train.trackers import spool
from gpuworker.train.trackers.backend import Backend, Refused
from gpuworker.train.trackers.system import System

POLL_S = 0.2
RETRY_S = (0.5, 10.0)  # first and longest pause after a failure
REFUSED_RETRY_S = 30.0  # a wrong key may be replaced, but hardly within seconds
SYSTEM_S = 10.0  # between two samples of the node


def client_of(plan: dict, folder: Path) -> Backend:
    if plan["tracker"] == "pluto":
        from gpuworker.train.trackers.pluto_run import PlutoRun

        return PlutoRun(plan, folder)
    from gpuworker.train.trackers.mlflow_run import MlflowRun

    return MlflowRun(plan)


class Sender:
    def __init__(self, folder: Path):
        self.folder = folder
        self.plan = json.loads((folder / spool.PLAN).read_text())
        self.console = os.fdopen(os.dup(1), "w")
        self.state: dict = {"delivered": 0}
        self.ending = threading.Event()  # no more records will come
        self.why = ""
        self.took = self.after = 0  # bytes that the client has, and will have next
        self.status: str | None = None  # how the training ended, once its last record is read
        self.lock = threading.Lock()
        self.client: Backend | None = None
        self.orphan = False  # nobody waits for this process

    def say(self, **facts: object) -> None:
        # Who read the training's output may have gone with it.
        with contextlib.suppress(OSError), contextlib.redirect_stdout(self.console):
            log("TRACK", rank=self.plan["rank"], tracker=self.plan["tracker"], **facts)

    def save(self, **facts: object) -> None:
        self.state |= facts
        spool.save_state(self.folder, self.state)

    # -- the end

    def watch(self) -> None:
        """Thread: wait for the training's last word, and end this process in time, whatever its client hangs in."""
        line = sys.stdin.readline().strip()
        self.orphan = not line
        seconds = float(line or self.plan["timeout_s"])
        self.ending.set()
        time.sleep(seconds)
        with self.lock:  # held for ever once all is well
            try:
                self.give_up()
            finally:
                os._exit(2)  # not reached, unless even that failed: the training keeps the rest

    def give_up(self) -> None:
        count, kept = spool.keep(self.folder, self.state["delivered"], Path(self.plan["keep"]))
        self.why = self.why or self.last_words() or "it did not answer in time"
        self.say(state="unsent", records=count, why=self.why, kept=kept)
        self.save(why=f"{count} records are kept in {kept}: {self.why}", kept_here=kept.parent == self.folder)
        if self.client:
            self.client.abandon()
        self.leave(1)

    def last_words(self) -> str:
        """The last line that the client printed, without colours."""
        lines = (self.folder / "client.log").read_text(errors="replace").split("\n")
        plain = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in lines]
        return next((f"the client's last line: {line[:300]}" for line in reversed(plain) if line), "")

    def leave(self, code: int) -> None:
        if self.orphan and not self.state.get("kept_here"):
            shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(code)

    # -- the work

    def run(self) -> None:
        pause = RETRY_S[0]
        system = System(self.plan["node"]) if self.plan["node_metrics"] else None
        sample_at = time.monotonic()
        while True:
            try:
                if self.client is None:
                    client = client_of(self.plan, self.folder)
                    facts = client.start()
                    self.client = client
                    self.say(state="started", **facts)
                    self.save(started=True)
                records = self.take()
                if system and time.monotonic() >= sample_at and self.status is None:
                    sample_at = time.monotonic() + SYSTEM_S
                    self.client.send([system.sample()])
                self.client.send(records)
                self.took, pause = self.after, RETRY_S[0]
                if self.client.delivered():
                    if self.took != self.state["delivered"]:
                        self.save(delivered=self.took)
                    if self.status is not None and not records:
                        self.finish()
                    if self.why:
                        self.say(state="works again")
                        self.why = ""
                if not records:
                    time.sleep(POLL_S) if self.ending.is_set() else self.ending.wait(POLL_S)
            except Exception as error:
                self.trouble(error)
                pause = REFUSED_RETRY_S if isinstance(error, Refused) else min(2 * pause, RETRY_S[1])
                # At the end there is no time for long pauses.
                time.sleep(RETRY_S[0]) if self.ending.is_set() else self.ending.wait(pause)

    def take(self) -> list[dict]:
        """The next records and, in self.after, the offset behind them; sets self.status at the last one."""
        over = self.ending.is_set()  # asked first: nothing is written after it
        path = self.folder / spool.SPOOL
        records, self.after = spool.read(path, self.took)
        if records and "end" in records[-1]:
            if len(records) == 1:
                # It counts as delivered only when the server has the status, so it stays in front.
                self.status, self.after = records[0]["end"], self.took
                return []
            records, self.after = spool.read(path, self.took, len(records) - 1)
        elif over and not records:
            self.status = "failed"  # the training died
        return records

    def final(self) -> str | None:
        """The status that the run gets: none on ranks other than 0, and none if an attempt will follow."""
        if self.plan["rank"] or self.status == "saved" or (self.status == "failed" and self.plan["failures_left"]):
            return None
        return self.status

    def trouble(self, error: Exception) -> None:
        why = " ".join(str(error).split())[:500] or type(error).__name__
        if why != self.why:
            self.why = why
            self.say(state="refused" if isinstance(error, Refused) else "retrying", why=why)
            self.save(why=why)

    def finish(self) -> None:
        client, self.client = self.client, None  # if this fails, the next try begins anew
        client.end(self.final())
        with self.lock:
            self.say(state="sent", status=self.final() or "left open")
            self.leave(0)


def resend(file: Path) -> int:
    """Send a file that spool.keep has written."""
    first, _, rest = file.read_text().partition("\n")
    folder = Path(tempfile.mkdtemp(prefix="resend-"))
    plan = json.loads(first)["plan"] | {"timeout_s": 300.0, "node_metrics": False, "keep": str(file.parent)}
    (folder / spool.PLAN).write_text(json.dumps(plan))
    records = rest if '{"end":' in rest else rest + '{"end":"saved"}\n'
    (folder / spool.SPOOL).write_text(records)
    sys.stdin = io.StringIO()
    return main(folder)


def main(folder: Path) -> int:
    os.nice(5)
    sender = Sender(folder)
    # What clients print is theirs; it stays in a file for those who look for a fault.
    client_log = os.open(folder / "client.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(client_log, 1)
    os.dup2(client_log, 2)
    os.environ |= {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    # Clients ask torch whether it is distributed; importing it would cost each sender half a gigabyte.
    sys.modules["torch"] = None
    threading.Thread(target=sender.watch, daemon=True).start()
    sender.run()
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--resend":
        sys.exit(resend(Path(sys.argv[2])))
    # The training tells this process when to end; a signal to the pod must not.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(main(Path(sys.argv[1])))
