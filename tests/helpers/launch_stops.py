"""Generated launches that somebody stops: by SIGTERM at any moment, or by SIGSTOP of a launcher."""

import contextlib
import random
import signal
import time

from tests.helpers.launch_cases import FAULTS, HEAD, Case
from tests.helpers.processes import until

SAVES = ("sys.exit(75)", "os._exit(75)", "sys.exit(0)")  # how a program that has saved ends


def stop(draw: random.Random, nodes: int, each: int) -> Case:
    """SIGTERM to one pod: every rank saves for its own time, or one does not save."""
    world, saves = nodes * each, draw.choice(SAVES)
    slow, bad = draw.randrange(world), draw.choice([None, None, draw.randrange(world)])
    target, seconds = draw.randrange(nodes), draw.choice([1, 4])
    program = HEAD.format(culprit=-1) + (
        "stop = []\nsignal.signal(signal.SIGTERM, lambda *_: stop.append(1))\nprint('READY', flush=True)\n"
        "while not stop:\n    time.sleep(0.02)\n"
        f"if RANK == {bad}:\n    sys.exit(4)\n"
        f"time.sleep({seconds} * (RANK == {slow}))\n"
        f"open(os.path.join(FOLDER, f'checkpoint-{{RANK}}'), 'w').write('whole')\n{saves}\n"
    )

    def action(run):
        run.until_ready(each)
        run.stop(target)

    saved = tuple(rank for rank in range(world) if rank != bad)
    if bad is not None:
        cause, code, named = (
            "stopped",
            143,
            (f"node {target} ", f"not saved on node {bad // each} "),
        )
    else:  # also with 0: it is in the middle of its work
        cause, code, named = "saved", 75, (f"node {target} ",)
    name = f"SIGTERM to node {target}, rank {slow} saves {seconds} s, rank {bad} does not, {saves}"
    return Case(name, nodes, each, program, cause, code, named, action=action, checkpoints=saved)


def early_stop(draw: random.Random, nodes: int, each: int, gloo: bool) -> Case:
    """SIGTERM to one pod at any moment of the programs' start. Ranks with a handler save; the
    others end at once.
    """
    target, delay = draw.randrange(nodes), draw.random() * (4 if gloo else 2.5)
    program = (
        "import os, signal, sys, time\nRANK, FOLDER = os.environ['RANK'], sys.argv[1]\n"
        "def save(*_):\n    time.sleep(0.5)\n    open(os.path.join(FOLDER, 'checkpoint-' + RANK), 'w').write('whole')\n"
        "    os._exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\nopen(os.path.join(FOLDER, 'handler-' + RANK), 'w').close()\n"
        "time.sleep(600)\n"
    )

    def action(run):
        until(
            lambda: all("master ready" in pod.output for pod in run.pods), "the nodes have joined"
        )
        time.sleep(delay)
        run.stop(target)

    def judge(run):
        ranks = [
            str(rank) for rank in range(nodes * each) if (run.folder / f"handler-{rank}").exists()
        ]
        assert all((run.folder / f"checkpoint-{rank}").exists() for rank in ranks), (
            f"ranks {ranks} had a handler"
        )
        return ("saved", 75) if len(ranks) == nodes * each else ("stopped", 143)

    name = f"SIGTERM to node {target} {delay:.2f} s after Go"
    named, flags = (f"node {target} ", "got SIGTERM"), ("--grace-period=120",)
    return Case(name, nodes, each, program, "", 0, named, flags, action=action, judge=judge)


def late_stop(draw: random.Random, nodes: int, each: int) -> Case:
    """A rank fails, and then somebody stops the pods: the failure is the cause."""
    culprit, targets = (
        draw.randrange(nodes * each),
        draw.sample(range(nodes), draw.randint(1, nodes)),
    )
    fault = draw.choice(
        ["exit code", "os._exit", "exception", "inotify", "killed", "segfault", "exec"]
    )
    statements, cause, code, words = FAULTS[fault]
    program = HEAD.format(culprit=culprit) + (
        f"if hit:\n    {statements}\n"
        "while not os.path.exists(os.environ['GPU_CHARTS_RANK_FOLDER'] + '/question'):\n    time.sleep(0.02)\n"
        "print('ASKED', flush=True)\ntime.sleep(600)\n"
    )

    def action(run):
        # A peer that has not begun is not asked, and the run may end without.
        until(
            lambda: any("ASKED" in pod.output or pod.verdicts for pod in run.pods),
            "the failure is known",
        )
        for target in targets:
            with contextlib.suppress(ProcessLookupError):
                run.stop(target)

    named = (f"rank {culprit} of node {culprit // each} ", *words)
    name = f"rank {culprit}: {fault}, then SIGTERM to nodes {targets}"
    return Case(name, nodes, each, program, cause, code, named, action=action)


def frozen(draw: random.Random, nodes: int, each: int) -> Case:
    """A launcher that is stopped until the others have ended, and then goes on."""
    victim = draw.randrange(nodes)
    program = HEAD.format(culprit=-1) + "print('READY', flush=True)\nwork(600)\n"

    def action(run):
        run.until_ready(each)
        process = run.pods[victim].started.process
        process.send_signal(signal.SIGSTOP)
        try:
            others = [pod for pod in run.pods if pod.node != victim]
            until(lambda: all(pod.verdicts for pod in others), "the other nodes end")
        finally:
            process.send_signal(signal.SIGCONT)

    flags = ("--heartbeat-timeout=5",)
    return Case(f"launcher of node {victim} frozen", nodes, each, program, "node-lost", 71, (f"node {victim}",), flags,
                action=action)  # fmt: skip
