"""Checks across nodes, run in the pods of the nodes as the collector orders."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from http import HTTPStatus
from pathlib import Path

import gpuworker
from gpuworker.fleet.client import ask, send
from gpuworker.fleet.report_sources import from_text
from gpuworker.judgement.judge import judge
from gpuworker.judgement.report import EXIT_CODES, INCOMPLETE, WORLD_REPORT
from gpuworker.runtime.contract import RENDEZVOUS_PORT, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.message_auth import load_key
from gpuworker.runtime.option_types import positive, positive_int, url

# Seconds between two questions, by the last answer: a fleet may have thousands of pods.
PAUSE_S = {"wait": 5.0, "leave": 20.0, "run": 0.0}
JOIN_S = 300  # until all nodes have started their ranks
TESTS = "gpuworker.accept.ddp_tests"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--to", type=url, required=True, metavar="URL", help="the collector")
    add("--run-id", required=True, metavar="ID", help="of the report")
    add("--node", required=True, metavar="NAME", help="name of this node")
    add("--address", required=True, metavar="IP", help="address of this pod")
    add("--ranks", type=positive_int, default=1, metavar="N", help="on each node")
    add("--timeout", type=positive, default=3600, metavar="S", help="to wait (default: 3600)")
    add("--stay", action="store_true", help="do not end")
    add("options", nargs="*", metavar="OPTION", help="after --: of ddp-tests")


def run(args: argparse.Namespace) -> int:
    """Run the checks across nodes in this node's pod, as the collector orders.

    It asks the collector for its part until that is to run or to leave, starts the ranks of this
    node with PyTorch's torchrun, and on the first node sends the report. With --stay it asks again
    then. Exit code 0: passed, or nothing to do; 1: FAIL; 3: INCOMPLETE.
    """
    key = load_key()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    end = math.inf if args.stay else time.monotonic() + args.timeout
    said = ""
    while time.monotonic() < end:
        order = part_of(args, key)
        if order["state"] != said:
            log(Tag.WORLD.value, **order)
        said = order["state"]
        code = run_ranks(args, order, key) if said == "run" else 0
        if said != "wait" and not args.stay:
            return code
        time.sleep(PAUSE_S[said])
    log(Tag.WORLD.value, state="failed", why=f"no answer in {args.timeout:g} s")
    return EXIT_CODES[INCOMPLETE]


def part_of(args: argparse.Namespace, key: bytes) -> dict:
    """What the collector answers; to wait if it does not."""
    question = json.dumps({"node": args.node, "address": args.address}).encode()
    status, answer = ask(f"{args.to}/world", question, key)
    with contextlib.suppress(ValueError):
        if status == HTTPStatus.OK:
            return json.loads(answer)
    return {"state": "wait", "why": answer.strip()}


def run_ranks(args: argparse.Namespace, order: dict, key: bytes) -> int:
    """Run the ranks of this node to their end; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=static",
            f"--nnodes={order['nodes']}", f"--node-rank={order['node_rank']}",
            f"--nproc-per-node={args.ranks}", f"--master-addr={order['address']}",
            f"--master-port={RENDEZVOUS_PORT}", f"--rdzv-conf=timeout={JOIN_S}",
            "-m", TESTS, f"--report-dir={folder}", *args.options,
        ]  # fmt: skip
        paths = [str(Path(gpuworker.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        own = {"RUN_ID": args.run_id, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        ranks = subprocess.Popen(command, env=os.environ | own, start_new_session=True)
        try:
            code = ranks.wait()
        finally:  # also when this pod is deleted
            if ranks.poll() is None:
                os.killpg(ranks.pid, signal.SIGTERM)
        log(Tag.WORLD.value, state="ended", node_rank=order["node_rank"], exit_code=code)
        report = Path(folder) / WORLD_REPORT
        if order["node_rank"] or not report.exists():
            return 0 if code == 0 else EXIT_CODES[INCOMPLETE]
        data = report.read_bytes()
    problem = send(data, f"{args.to}/reports", args.timeout, key)
    (source, *_) = from_text(WORLD_REPORT, data)
    if problem or not source.report:
        log(Tag.WORLD.value, state="failed", why=problem or source.error)
        return EXIT_CODES[INCOMPLETE]
    return EXIT_CODES[judge(source.report).verdict]
