"""Process that sends one rank's records to one tracker: python -m gpuworker.train.trackers.sender FOLDER

It retries for as long as the training runs, however long the server is down. The training ends it with a line on its
standard input: the number of seconds that are left. If the training dies, the line is missing, and the run has failed.

    python -m gpuworker.train.trackers.sender --resend FILE

sends the records that an earlier run could not. The environment must contain the server and the key.
"""

from __future__ import annotations

import argparse
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

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train.trackers import settings, spool
from gpuworker.train.trackers.backend import Backend, RejectedError
from gpuworker.train.trackers.redact import redact
from gpuworker.train.trackers.system import SystemMetrics

POLL_S = 0.2
RETRY_S = (0.5, 10.0)  # first and longest pause after a failure
REJECTED_RETRY_S = 30.0  # a wrong key may be replaced, but hardly within seconds
REPEAT_S = 600.0  # between two lines with the same reason
SYSTEM_S = 10.0  # between two samples of the node


def make_client(config: dict, folder: Path) -> Backend:
    if config["tracker"] == "pluto":
        from gpuworker.train.trackers.pluto_run import PlutoRun

        return PlutoRun(config, folder)
    from gpuworker.train.trackers.mlflow_run import MlflowRun

    return MlflowRun(config)


class Sender:
    def __init__(self, folder: Path):
        self.folder = folder
        self.config = json.loads((folder / spool.CONFIG).read_text())
        self.console = os.fdopen(os.dup(1), "w")
        self.state: dict = {"delivered": 0}
        self.ending = threading.Event()  # the training writes no more records
        self.why = ""  # of the last failure, until it is over
        self.logged: dict[str, float] = {}  # reason, without its numbers -> time of its line, in this outage
        self.sent = self.next_offset = 0  # offsets after the records that the client has, and will have next
        self.status: str | None = None  # of the training, once its last record is read
        self.lock = threading.Lock()
        self.client: Backend | None = None
        self.artifacts: list[dict] = []  # records of files that are sent after the end of the run
        self.orphan = False  # the training has died and does not wait for this process

    def log(self, **facts: object) -> None:
        # The reader of the training's output may have ended with it.
        with contextlib.suppress(OSError), contextlib.redirect_stdout(self.console):
            log(Tag.TRACK, rank=self.config["rank"], tracker=self.config["tracker"], **without_credentials(facts))

    def save_state(self, **facts: object) -> None:
        self.state |= without_credentials(facts)
        spool.save_state(self.folder, self.state)

    # -- the end

    def enforce_deadline(self) -> None:
        """Thread: wait for the training's end, and exit in time even if the client hangs."""
        line = sys.stdin.readline().strip()
        self.orphan = not line
        seconds = float(line or self.config["timeout_s"])
        self.ending.set()
        time.sleep(seconds)
        with self.lock:  # never released once everything is sent
            try:
                self.give_up()
            finally:
                os._exit(2)  # reached only if give_up failed: the training saves the rest

    def give_up(self) -> None:
        target = Path(self.config["unsent_folder"])
        count, file = spool.save_unsent(self.folder, self.state["delivered"], target, self.artifacts)
        self.why = self.why or self.last_client_line() or "no response in time"
        self.log(state="unsent", records=count, why=self.why, kept=file)
        self.save_state(why=f"{count} records are kept in {file}: {self.why}", kept_here=file.parent == self.folder)
        if self.client:
            self.client.abandon()
        self.exit_now(1)

    def last_client_line(self) -> str:
        """The last line that the client printed, without colors."""
        lines = (self.folder / spool.CLIENT_LOG).read_text(errors="replace").split("\n")
        plain = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in lines]
        return next((f"the client's last line: {redact(line)[:300]}" for line in reversed(plain) if line), "")

    def exit_now(self, code: int) -> None:
        if self.orphan and not self.state.get("kept_here"):
            shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(code)

    # -- sending

    def run(self) -> None:
        pause = RETRY_S[0]
        system = SystemMetrics(self.config["node"]) if self.config["node_metrics"] else None
        sample_at = time.monotonic()
        while True:
            try:
                if self.client is None:
                    client = make_client(self.config, self.folder)
                    facts = client.start()
                    self.client = client
                    self.log(state="started", **facts)
                    self.save_state(started=True)
                records = self.next_records()
                if system and time.monotonic() >= sample_at and self.status is None:
                    sample_at = time.monotonic() + SYSTEM_S
                    self.client.send([system.sample()])
                later = [record for record in records if "artifact" in record and self.client.artifacts_last]
                self.client.send([record for record in records if record not in later])
                self.artifacts += later
                self.sent, pause = self.next_offset, RETRY_S[0]
                if self.client.delivered():
                    if self.sent != self.state["delivered"]:
                        self.save_state(delivered=self.sent)
                    if self.status is not None and not records:
                        self.finish()
                    if self.why:
                        self.log(state="recovered")
                        self.why = ""
                        self.logged.clear()
                if not records:
                    time.sleep(POLL_S) if self.ending.is_set() else self.ending.wait(POLL_S)
            except Exception as error:
                self.log_failure(error)
                pause = REJECTED_RETRY_S if isinstance(error, RejectedError) else min(2 * pause, RETRY_S[1])
                # There is no time for long pauses at the end.
                time.sleep(RETRY_S[0]) if self.ending.is_set() else self.ending.wait(pause)

    def next_records(self) -> list[dict]:
        """The next records. Sets self.next_offset to their end, and self.status at the last record."""
        ending = self.ending.is_set()  # read first: nothing is written after it is set
        path = self.folder / spool.SPOOL
        records, self.next_offset = spool.read_records(path, self.sent)
        if records and "end" in records[-1]:
            if len(records) == 1:
                # It is delivered only once the server has the status, so its offset does not advance.
                self.status, self.next_offset = records[0]["end"], self.sent
                return []
            records, self.next_offset = spool.read_records(path, self.sent, len(records) - 1)
        elif ending and not records:
            self.status = "failed"  # the training died
        return records

    def final_status(self) -> str | None:
        """Status of the run: None on ranks other than 0, and if another attempt follows."""
        retried = self.status == "failed" and self.config["failures_left"]
        return None if self.config["rank"] or self.status == "saved" or retried else self.status

    def log_failure(self, error: Exception) -> None:
        why = redact(" ".join(str(error).split()))[:500] or type(error).__name__  # cut last: a cut password is unknown
        if why != self.why:
            self.why = why
            self.save_state(why=why)
        # Several reasons may take turns, with a number of their own in each text.
        kind, now = re.sub(r"0x[0-9a-fA-F]+|[0-9]+", "0", why), time.monotonic()
        if now - self.logged.get(kind, -REPEAT_S) >= REPEAT_S:
            self.logged[kind] = now
            self.log(state="rejected" if isinstance(error, RejectedError) else "retrying", why=why)

    def finish(self) -> None:
        client, self.client = self.client, None  # if this fails, the next attempt starts a new client
        client.end(self.final_status())
        self.send_artifacts(client)
        with self.lock:
            self.log(state="sent", status=self.final_status() or "left open")
            self.exit_now(0)

    def send_artifacts(self, client: Backend) -> None:
        """Send the files that are left. Gives up at the deadline, or if the server rejects one."""
        while self.artifacts:
            try:
                client.send(self.artifacts[:1])
                self.artifacts.pop(0)
            except Exception as error:
                self.log_failure(error)
                if isinstance(error, RejectedError):
                    with self.lock:
                        self.give_up()
                time.sleep(RETRY_S[0])


def without_credentials(facts: dict[str, object]) -> dict[str, object]:
    """All that leaves this process, but for the records, passes here."""
    return {
        key: value if value is None or isinstance(value, (bool, int, float)) else redact(str(value))
        for key, value in facts.items()
    }


def resend(file: Path) -> int:
    """Send a file that spool.save_unsent has written. Raises OSError, or ValueError for another file."""
    first, _, rest = file.read_text().partition("\n")
    changes = {"timeout_s": 300.0, "node_metrics": False, "unsent_folder": str(file.parent)}
    try:
        config = json.loads(first)["config"] | changes
    except (LookupError, TypeError, ValueError):
        raise ValueError(f"{file}: not a file with unsent records") from None
    folder = Path(tempfile.mkdtemp(prefix="resend-"))
    (folder / spool.CONFIG).write_text(json.dumps(config))
    records = rest if '{"end":' in rest else rest + '{"end":"saved"}\n'
    (folder / spool.SPOOL).write_text(records)
    sys.stdin = io.StringIO()
    return main(folder)


def main(folder: Path) -> int:
    os.nice(5)
    sender = Sender(folder)
    # The output of clients goes to a file, for debugging.
    client_log = os.open(folder / spool.CLIENT_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(client_log, 1)
    os.dup2(client_log, 2)
    os.environ |= settings.stripped(os.environ)
    os.environ |= {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    # Clients import torch to see whether it is distributed. That would cost each sender half a gigabyte.
    sys.modules["torch"] = None
    threading.Thread(target=sender.enforce_deadline, daemon=True).start()
    sender.run()
    return 0


def run_command() -> int:
    sys.stdin.reconfigure(encoding="utf-8")  # the training writes to it, whatever PYTHONIOENCODING is
    parser = argparse.ArgumentParser(prog="sender", description="Send the records that an earlier run could not.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--resend", type=Path, metavar="FILE", help="unsent-….jsonl, which the log of the run names")
    which.add_argument("folder", type=Path, nargs="?", help=argparse.SUPPRESS)  # of the training that starts this
    args = parser.parse_args()
    if args.resend:
        try:
            return resend(args.resend)
        except (OSError, ValueError) as error:
            parser.exit(2, f"sender: {error}\n")
    # The training ends this process. A signal to the pod must not.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return main(args.folder)


if __name__ == "__main__":
    sys.exit(run_command())
