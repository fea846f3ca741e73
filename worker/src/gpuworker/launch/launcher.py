"""ddp-launch: run a program under torchrun on every node of a run, without hangs and with one verdict for all nodes.

  ddp-launch [FLAGS] -- train.py --epochs 3        (after --, the program for torchrun: SCRIPT ARGS… or -m MODULE ARGS…)

The configuration is in the flags and in NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR, MASTER_PORT, RUN_ID and
ATTEMPT. Phases: config, resolve, interface, preflight, rendezvous, run; one log line each. The last line is the same on
every node: [DONE], or [FATAL] with exit code, cause, nodes and remedy. failure_causes.py has the table of causes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from pathlib import Path

from gpuworker.launch import node_info, statefulset
from gpuworker.launch.config import LaunchConfig, read_arguments, read_config
from gpuworker.launch.failure_causes import Verdict
from gpuworker.launch.node_launcher import NodeLauncher
from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import BackgroundOutput, log, write_termination_message

VERDICT_S = 3  # after which the verdict is logged although ranks still run


async def launch(config: LaunchConfig, started_at: float) -> int:
    """Run one launch. Returns the exit code, after the verdict was logged."""
    launcher, verdict = NodeLauncher(config, started_at), None
    running = asyncio.create_task(launcher.run())
    await asyncio.wait({running, launcher.stopped_early}, return_when=asyncio.FIRST_COMPLETED)
    this_node = node_info.format_node(node_info.describe_self())
    try:
        if running.done():
            running.result()
        else:
            # Not awaited: what it waits for may swallow the cancellation (asyncio.wait_for can).
            running.cancel()
            raise Verdict("stopped", f"{this_node} got {launcher.stop_reason} before the world was formed", "stop")
    except Verdict as found:
        verdict = found
    except Exception as error:
        traceback.print_exc()
        verdict = Verdict("launcher-failed", f"{this_node}: {type(error).__name__}: {error}")
    closing = asyncio.create_task(launcher.close(verdict))
    await asyncio.wait({closing}, timeout=VERDICT_S)
    code = report(config, verdict, time.monotonic() - started_at)
    try:
        await closing
        await launcher.wait_for_leftovers(failed=verdict is not None)
    except Exception:  # a failure of the clean-up does not change the verdict
        traceback.print_exc()
    return code


def main() -> None:
    escape_output()
    started_at = time.monotonic()
    args = config = output = None
    try:
        args, problem = read_arguments()
        output = sys.stdout = sys.stderr = BackgroundOutput(1)
        if args.idle_after_exit:
            os.environ |= statefulset.begin(Path(args.idle_after_exit), args.max_attempts)
        config = read_config(args, dict(os.environ), problem)
        # Not asyncio.run, which waits for every task to end: tasks that still wait end with the process.
        code = asyncio.new_event_loop().run_until_complete(launch(config, started_at))
    except Verdict as found:
        code = report(config, found, time.monotonic() - started_at)
    except OSError as error:  # of the folder of the attempts
        reason = f"{node_info.format_node(node_info.describe_self())}: {error}"
        code = report(config, Verdict("launcher-failed", reason, "config"), time.monotonic() - started_at)
    if output:
        output.close()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    if args and args.idle_after_exit:
        statefulset.finish(Path(args.idle_after_exit), args.max_attempts, code)
    os._exit(code)  # a look-up of a name that still hangs in its thread must not delay the exit


def report(config: LaunchConfig | None, verdict: Verdict | None, seconds: float) -> int:
    """Log the verdict, write it to the termination message, and return the exit code."""
    if verdict is None:
        log(Tag.DONE, world=config.world_size, seconds=seconds)
        return int(ExitCode.DONE)
    cause = verdict.cause
    tag = Tag.DONE if cause.key == "saved" else Tag.FATAL
    facts = {"exit_code": verdict.code, "cause": cause.key, "phase": verdict.phase, "reason": verdict.reason}
    log(tag, **facts, remedy=cause.remedy, seconds=seconds)
    write_termination_message(f"exit code {verdict.code} ({cause.key}): {verdict.reason}. {cause.remedy}")
    return verdict.code


if __name__ == "__main__":
    main()
