"""torchrun's command line for ddp-launch: the zipapp (build_zipapp) behaves like torchrun if its file has that name.

A group's task with `launcher: ddp-launch` finds this command before the real torchrun. Flags that repeat the
environment contract are dropped, flags that change it are followed where a user may change it, and others are refused.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import MutableMapping
from pathlib import Path

from gpuworker.launch import launcher
from gpuworker.launch.failure_causes import Verdict
from gpuworker.runtime.contract import INTERNAL_PREFIX, VARIABLES, Override

CONTRACT_FLAGS = ("nnodes", "node-rank", "nproc-per-node", "master-addr", "master-port")
REPLACED_FLAGS = ("rdzv-id", "rdzv-conf")  # the launcher has its own
OTHER_FLAGS = ("rdzv-backend", "rdzv-endpoint", "max-restarts")
REMEDY = "Change the flag, or set `launcher: torchrun` in the task"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise Verdict("usage", f"torchrun under ddp-launch: {message}. {REMEDY}", "config")


def parser() -> argparse.ArgumentParser:
    made = _Parser(prog="torchrun", allow_abbrev=False, add_help=False)
    for name in (*CONTRACT_FLAGS, *REPLACED_FLAGS, *OTHER_FLAGS):
        made.add_argument(f"--{name}", f"--{name.replace('-', '_')}")
    made.add_argument("--standalone", action="store_true")
    made.add_argument("-m", "--module", dest="mode", action="append_const", const="-m", default=[])
    made.add_argument("--no-python", "--no_python", dest="mode", action="append_const", const="--no-python")
    made.add_argument("script")
    made.add_argument("arguments", nargs=argparse.REMAINDER)
    return made


def to_launch_arguments(args: argparse.Namespace, environ: MutableMapping[str, str]) -> list[str]:
    """Arguments of ddp-launch. Puts flags that override the contract into `environ`; raises the verdict `usage`."""
    flags = {name: getattr(args, name.replace("-", "_")) for name in CONTRACT_FLAGS}
    if args.rdzv_endpoint:
        # A number behind the last colon is the port, unless the colon belongs to an address in brackets.
        host, port = re.fullmatch(r"(?s)(.*?)(?::(\d+))?", args.rdzv_endpoint).groups()
        host = host.removeprefix("[").removesuffix("]")
        flags |= {"master-addr": flags["master-addr"] or host, "master-port": flags["master-port"] or port}
    address = flags["master-addr"] or environ.get("MASTER_ADDR", "")
    if address == environ.get("SKYPILOT_NODE_IPS", "").partition("\n")[0]:
        # The name still finds node 0 when its pod has been replaced. A script may have set MASTER_ADDR, too.
        flags["master-addr"] = environ.get("PET_MASTER_ADDR", address)
    if flags["nproc-per-node"] in ("auto", "gpu"):
        flags["nproc-per-node"] = None
    override = {variable.name: variable.override for variable in VARIABLES}
    problems = []
    for name, value in flags.items():
        variable = name.replace("-", "_").upper()
        if value and value != environ.get(variable):
            if override[variable] is Override.REFUSED:
                problems.append(f"--{name}={value} contradicts {variable}={environ.get(variable, '')} of this task")
            else:
                environ[variable] = value
    if args.max_restarts not in (None, "0"):
        problems.append(f"--max-restarts={args.max_restarts}: restarts are set by `recovery` in the task")
    backend = args.rdzv_backend or "static"
    if backend not in ("static", "c10d"):
        problems.append(f"--rdzv-backend={backend}: must be static or c10d")
    if problems:
        raise Verdict("usage", f"torchrun under ddp-launch: {'; '.join(problems)}. {REMEDY}", "config")
    settings = shlex.split(environ.get(f"{INTERNAL_PREFIX}LAUNCHER", ""))
    return [*settings, f"--backend={backend}", "--", *args.mode, args.script, *args.arguments]


def main() -> None:
    """Entry point of the zipapp, as ddp-launch or as torchrun."""
    if Path(sys.argv[0]).name == "torchrun":
        try:
            args = parser().parse_args(sys.argv[1:])
            if args.standalone:  # a world of this node alone
                os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *sys.argv[1:]])
            sys.argv[1:] = to_launch_arguments(args, os.environ)
        except Verdict as verdict:
            sys.exit(launcher.report(None, verdict, 0.0))
    launcher.main()
