"""Generated launches with an oracle: a random fault in a random phase, node and rank, and what the
verdict must be.

`generate` draws a case from a seed; `check` runs it with processes on the loopback interface and
returns what differs from the oracle. Healthy cases have no fault, and something that could be
mistaken for one.
"""

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers import launch_stops
from tests.helpers.launch_cases import FAULTS, HEAD, Case
from tests.helpers.launchers import Run

# With real torch: the steps are collectives, and so is what the other ranks do after a fault.
GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()  # a rank that ends while another still connects fails it
def steps(seconds):
    for _ in range(int(seconds / 0.05)):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)
"""
# What the other ranks do when a peer has failed: they hang, or torch raises an error there.
PEERS = {
    "hang": "time.sleep(600)",
    "error at once": "raise RuntimeError('[/pytorch/gloo/transport/tcp/pair.cc:525] Connection closed by peer')",
    "error later": "time.sleep(random.random() * 1.5); raise RuntimeError('NCCL error in: ProcessGroupNCCL.cpp:1, "
                  "remote process exited or there was a network error')",
    "busy": "steps(600)",
}  # fmt: skip
HANGING = ("hang", "busy")
# Healthy programs -> what looks like a fault.
HEALTHY = {
    "os._exit": "work(RANK % 2 * 4); os._exit(0)",
    "exec": "work(RANK % 2 * 4); os.execv('/bin/true', ['true'])",
    "daemon left": "os.fork() or (os.setsid(), time.sleep(3), os._exit(0))",
    "flood": "end = time.monotonic() + 3\nwhile time.monotonic() < end:\n    os.write(1, b'y\\n' * 500)",
    "no newline": "os.write(1, b'x' * 200_000); time.sleep(1); os.write(1, b'\\x00\\xff\\x1b[0m' * 100)",
    "silent": "time.sleep(5)",
    "thread": "threading.Thread(target=time.sleep, args=(3,)).start()",
    "unequal": "work(RANK * 1.5)",
    "warnings": "print('Connection refused'); print('Traceback (most recent call last)'); print('x NCCL WARN x')",
    "children": "[os.wait() for _ in range(20) if os.fork() or os._exit(1)]",
    "sigterm ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "closes output": "os.close(1); os.close(2)",
}
# a busy machine imports torch for minutes in many processes at once, and that is not a fault
JOIN_S = 150


def generate(seed: int, healthy: bool, gloo: bool = False) -> Case:
    """`gloo`: with torch and its collectives, in worlds of at most four ranks."""
    draw = random.Random(seed)
    small = [(1, 2), (2, 1), (2, 2)]
    nodes, each = draw.choice(small if gloo else [*small, (1, 4), (2, 4), (3, 1), (3, 2), (4, 1)])
    case = _healthy(draw, nodes, each) if healthy else _faulty(draw, nodes, each, gloo)
    if gloo:
        case.program, case.gloo, case.limit_s = (
            case.program.replace("# process group\n", GLOO),
            True,
            180,
        )
    return case


def _faulty(draw: random.Random, nodes: int, each: int, gloo: bool) -> Case:
    peers = ("busy",) if gloo else tuple(PEERS)
    kind = draw.choice(
        [
            "rank",
            "rank",
            "rank",
            "stop",
            "stop",
            "launcher",
            "frozen",
            "preflight",
            "early stop",
            "late stop",
        ]
    )
    if kind == "early stop":
        return launch_stops.early_stop(draw, nodes, each, gloo)
    if kind == "late stop" and nodes * each > 1 and not gloo:
        return launch_stops.late_stop(draw, nodes, each)
    if kind == "stop":
        return launch_stops.stop(draw, nodes, each)
    if kind == "frozen" and nodes > 1:
        return launch_stops.frozen(draw, nodes, each)
    if kind == "launcher" and nodes > 1:
        return _launcher(draw, nodes, each, peers)
    if kind == "preflight" and nodes > 1:
        return _preflight(draw, nodes, each)
    return _rank(draw, nodes, each, peers)


def _rank(draw: random.Random, nodes: int, each: int, choices: tuple[str, ...]) -> Case:
    culprit = draw.randrange(nodes * each)
    fault, peers = draw.choice(list(FAULTS)), draw.choice(choices)
    statements, cause, code, words = FAULTS[fault]
    flags = ("--exit-timeout=2",) if cause == "exit-timeout" else ()
    if cause == "exit-timeout":
        peers = draw.choice(
            [peer for peer in choices if peer in HANGING]
        )  # a rank that has not ended has lost no connection
    phase = draw.choice([0, 0.3, 2])
    program = HEAD.format(culprit=culprit) + (
        f"steps({phase})\nif hit:\n    begin_fault()\n    {statements}\n"
        f"else:\n    wait_for_fault()\n    {PEERS[peers]}\n"
    )
    named = (f"rank {culprit} of node {culprit // each} ", *words)
    return Case(
        f"rank {culprit}: {fault} after {phase} s, peers {peers}",
        nodes,
        each,
        program,
        cause,
        code,
        named,
        flags,
    )


def _launcher(draw: random.Random, nodes: int, each: int, choices: tuple[str, ...]) -> Case:
    victim, delay = draw.randrange(nodes), draw.choice([0, 1])
    peers = draw.choice(choices)
    program = (
        HEAD.format(culprit=-1) + f"print('READY', flush=True)\nwait_for_fault()\n{PEERS[peers]}\n"
    )

    def action(run):
        run.until_ready(each)
        time.sleep(delay)
        run.pods[victim].started.process.send_signal(signal.SIGKILL)
        (run.folder / "fault").touch()

    named = (f"node {victim}",)
    name = f"launcher of node {victim} killed, peers {peers}"
    return Case(
        name, nodes, each, program, "node-lost", 71, named, action=action, without_node=victim
    )


def _preflight(draw: random.Random, nodes: int, each: int) -> Case:
    victim = draw.randrange(nodes)
    kind = draw.choice(["no folder", "no program", "no number", "no output"])
    if kind == "no folder":
        fault, cause, code = {"FAULT_NO_TEMPORARY_FOLDER": "1"}, "node-unfit", 67
    else:
        wrong = {
            "no number": "--grace-period=no",
            "no output": "--output-dir=/no/such",
            "no program": "PROGRAM",
        }[kind]
        fault, cause, code = {"FLAG": wrong}, "usage", 2
    program = HEAD.format(culprit=-1) + "steps(600)\n"
    name = f"node {victim} cannot start: {kind}"
    return Case(
        name,
        nodes,
        each,
        program,
        cause,
        code,
        (f"node {victim} ",),
        variables={victim: fault},
        limit_s=15,
    )


def _healthy(draw: random.Random, nodes: int, each: int) -> Case:
    first, second = draw.sample(list(HEALTHY), 2)
    program = HEAD.format(culprit=draw.randrange(nodes * each))
    # In one rank only or in all; what ends the process comes last.
    last = ["closes output", "os._exit", "exec"]
    first, second = sorted(
        (first, second), key=lambda name: last.index(name) if name in last else -1
    )
    everyone = draw.choice([True, False])
    for name in (first, second):
        block = HEALTHY[name].replace("\n", "\n    ")
        program += f"if hit or {everyone}:\n    {block}\n"
    flags = ("--heartbeat-timeout=5",)
    name = f"healthy: {first}, {second}, {'all ranks' if everyone else 'one rank'}"
    return Case(name, nodes, each, program, "done", 0, (), flags)


def check(start: Callable[..., object], folder: Path, case: Case) -> list[str]:
    """Run a case. Returns what differs from the oracle, with the output of all pods at the end."""
    run = Run(start, folder, torch=case.gloo)
    program = run.script(case.program)
    for node in range(case.nodes):
        changes = dict(case.variables.get(node, {}))
        flag = changes.pop("FLAG", "")
        flags = [*case.flags, *([flag] if flag.startswith("--") else [])]
        run.pod(
            node,
            case.nodes,
            f"--join-timeout={JOIN_S}",
            *flags,
            program=[folder / "missing.py" if flag == "PROGRAM" else program, folder],
            NPROC_PER_NODE=case.each,
            **changes,
        )
    started, found = time.monotonic(), []
    try:
        if case.action:
            case.action(run)
        codes = [pod.started.wait(case.limit_s + 30) for pod in run.pods]
    except Exception as error:
        return [f"hang: {type(error).__name__}: {error}", run.output]
    if case.judge:
        try:
            case.cause, case.code = case.judge(run)
        except AssertionError as error:
            return [f"destroyed: {error}", run.output]
    if time.monotonic() - started > case.limit_s:
        found.append(f"took {time.monotonic() - started:.0f} s, limit {case.limit_s:.0f} s")
    for pod, code in zip(run.pods, codes, strict=True):
        if pod.node != case.without_node:
            found += _compare(case, pod, code)
    for rank in case.checkpoints:
        if not (folder / f"checkpoint-{rank}").exists():
            found.append(f"the checkpoint of rank {rank} was destroyed")
    return [*found, run.output] if found else []


def _compare(case: Case, pod: object, code: int) -> list[str]:
    if code != case.code:
        return [f"node {pod.node}: exit code {code}, not {case.code}"]
    if len(pod.verdicts) != 1:
        return [f"node {pod.node}: {len(pod.verdicts)} verdicts"]
    verdict = pod.verdicts[0]
    found = []
    if case.cause != "done" and f" cause={case.cause} " not in verdict:
        found.append(f"node {pod.node}: not the cause {case.cause}: {verdict}")
    missing = [word for word in case.named if word not in verdict]
    if missing:
        found.append(f"node {pod.node}: {missing} is not in {verdict}")
    if case.code not in (0,) and not re.match(
        rf"exit code {case.code} \({case.cause}\)", pod.termination_message
    ):
        found.append(f"node {pod.node}: termination message {pod.termination_message!r}")
    return found


def seeds() -> tuple[int, int]:
    """First seed and number of cases of each kind, from the environment."""
    return int(os.environ.get("FAMILY_SEED", "1")), int(os.environ.get("FAMILY_RUNS", "8"))
