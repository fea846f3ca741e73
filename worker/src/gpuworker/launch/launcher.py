"""ddp-launch: run a program on every node of a run, without hangs and with one verdict for all.

  ddp-launch [FLAGS] train.py --epochs 3       torchrun's command line, see --help
  ddp-launch stacks                            where all ranks of the run in this pod are

Settings are torchrun's flags, or NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR, MASTER_PORT,
RUN_ID and ATTEMPT. Phases: config, resolve, interface, preflight, run; one log line each. The last
line is the same on every node: [DONE], or [FATAL] with exit code, cause, nodes and remedy.
failure_causes.py has the table of causes.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import time
import traceback
from pathlib import Path

from gpuworker.launch import output, statefulset
from gpuworker.launch.command_line import read_arguments
from gpuworker.launch.config import LaunchConfig, read_config
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.node_launcher import SHOWN, WANTED, NodeLauncher
from gpuworker.launch.root_cause import named, of_error
from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.contract import INTERNAL_PREFIX, Tag
from gpuworker.runtime.log import log, write_termination_message

STACKS_S = 10
VERDICT_S = 3  # after which the verdict is logged although ranks still run
IN_A_RANK = f"{INTERNAL_PREFIX}RANK_FOLDER"


async def launch(config: LaunchConfig, started_at: float, out: output.Output) -> int:
    """Run one launch. Returns the exit code, after the verdict was logged."""
    launcher = NodeLauncher(config, started_at, out)
    running, stopped = asyncio.create_task(launcher.run()), launcher.stopped_early
    ended, _ = await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()  # not awaited: asyncio.wait_for can swallow it
    try:
        verdict = ended.pop().result()
    except Exception as error:
        verdict = named(launcher.name, of_error(error))
    closing = asyncio.create_task(launcher.close(verdict))
    await asyncio.wait({closing}, timeout=VERDICT_S)
    code = report(config.world_size, verdict, time.monotonic() - started_at)
    try:
        await closing
    except Exception:  # a failure of the clean-up does not change the verdict
        traceback.print_exc()
    return code


def main() -> None:
    escape_output()
    words = sys.argv[1:]
    as_torchrun = Path(sys.argv[0]).name == "torchrun"
    if as_torchrun and os.environ.get(IN_A_RANK):  # a world of the program's own, in a rank
        os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *words])
    if words[:1] == ["stacks"] and not Path("stacks").exists():
        sys.exit(stacks())
    started_at = time.monotonic()
    # Flags that a chart sets for the torchrun in a script of the user come first.
    flags = shlex.split(os.environ.get(f"{INTERNAL_PREFIX}LAUNCHER", ""))
    args, problem = read_arguments([*flags, *words])
    sys.stdout = sys.stderr = out = output.Output()
    try:
        if args.idle_after_exit:
            folder = Path(args.idle_after_exit)
            os.environ["ATTEMPT"] = statefulset.begin(folder, args.max_attempts)
        config = read_config(args, dict(os.environ), problem)
        # Not asyncio.run, which waits for every task: tasks that still wait end with the process.
        loop = asyncio.new_event_loop()
        code = loop.run_until_complete(launch(config, started_at, out))
    except (Failure, OSError) as error:  # OSError: of the folder of the attempts
        code = report(0, of_error(error), time.monotonic() - started_at)
    if args.idle_after_exit:
        statefulset.finish(Path(args.idle_after_exit), args.max_attempts, code)
    out.close()
    os._exit(code)  # a look-up of a name that still hangs in its thread must not delay the exit


def stacks() -> int:
    """Print the stacks of all ranks of the runs whose launchers run here. Returns the exit code."""
    hooks = [
        hook
        for hook in Path(tempfile.gettempdir()).glob("ddp-launch-*/hook")
        if Path("/proc", hook.parent.name.split("-")[2]).exists()  # a killed launcher's stays
    ]
    problem = "" if hooks else "no run in this pod"
    for shown in (hook.with_name(SHOWN) for hook in hooks):
        end = time.monotonic() + STACKS_S
        try:
            shown.unlink(missing_ok=True)
            shown.with_name(WANTED).touch()
            while not shown.exists() and time.monotonic() < end:
                time.sleep(0.1)
            print(shown.read_text())
        except OSError:
            problem = f"{shown.parent}: the launcher did not answer within {STACKS_S} s"
    if problem:
        print(f"ddp-launch stacks: {problem}", file=sys.stderr)
    return int(bool(problem))


def report(world: int, verdict: Failure, seconds: float) -> int:
    """Log the verdict, write it to the termination message, and return the exit code."""
    code, cause, reason, remedy = verdict.code, verdict.cause, verdict.reason, verdict.row.remedy
    if cause == "done":
        log(Tag.DONE, world=world, seconds=seconds)
        return code
    tag = Tag.DONE if verdict.row.wanted else Tag.FATAL
    log(tag, exit_code=code, cause=cause, reason=reason, remedy=remedy, seconds=seconds)
    write_termination_message(f"exit code {code} ({cause}): {reason}. {remedy}")
    return code


if __name__ == "__main__":
    main()
