"""ddp-launch where a table of programs (tests/launch_programs) does not suffice: readers, restarts,
ports, stacks.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.helpers.chart_programs import mount
from tests.helpers.launchers import STAND_IN, Run
from tests.helpers.processes import alive, environment, until

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


@pytest.fixture
def world(start, tmp_path):
    return Run(start, tmp_path, torch=True)


def test_all_nodes_use_the_run_id_and_the_attempt_of_node_0(run):
    program = run.script(
        "import os; print('attempt', os.environ['ATTEMPT'], 'of', os.environ['RUN_ID'])"
    )
    for node in range(2):
        run.pod(
            node,
            2,
            program=[program],
            ATTEMPT=3 - node,
            GPU_CHARTS_ATTEMPTS_IGNORED="" if node else 1,
        )
    assert run.wait() == [0, 0]
    for pod in run.pods:
        assert "attempt 4 of test" in pod.output


def test_a_full_disk_of_the_node_does_not_turn_a_good_end_into_a_failure(run):
    """The kubelet keeps the termination message on it."""
    pod = run.pod(
        0, 1, program=[run.script("import sys; sys.exit(75)")], TERMINATION_LOG="/dev/full"
    )
    assert pod.started.wait() == 75, pod.output
    assert len(pod.verdicts) == 1 and "Traceback" not in pod.output


def test_a_progress_bar_is_shown_live(run):
    program = run.script(
        "import sys, time\nsys.stdout.write('50%\\r'); sys.stdout.flush()\ntime.sleep(600)\n"
    )
    pod = run.pod(0, 1, program=[program])
    until(lambda: "50%" in pod.output, "the bar", 30)
    pod.started.process.send_signal(signal.SIGTERM)
    run.wait()


class Unread:
    """A pod whose output nobody reads for a while, as when the node's disk for logs stalls."""

    def __init__(self, *arguments: object, **variables: object):
        command = [sys.executable, *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment(**variables), text=True
        )
        self.output = ""

    def wait(self) -> int:
        self.output = self.process.communicate(timeout=60)[0]
        return self.process.returncode


def test_output_that_nobody_reads_is_not_a_lost_node(run):
    """The pipe of node 0 stays full for longer than the heartbeat time-out."""
    program = run.script("import os, time\nos.write(1, b'x' * 300_000 + b'\\n')\n")
    start = run.start
    for node in range(2):
        run.start = start if node else Unread
        run.pod(node, 2, "--heartbeat-timeout=4", program=[program])
    time.sleep(10)
    assert run.wait() == [0, 0], [pod.verdicts for pod in run.pods]
    assert "x" * 300_000 + "\n" in run.pods[0].output


def test_the_verdict_does_not_wait_for_processes_left_behind(run):
    """On a machine of one's own nothing else would end the workers of a failed rank."""
    program = run.script(
        "import os, signal, sys, time\nif child := os.fork():\n    print('LEFT', child, flush=True)\n    sys.exit(3)\n"
        "os.setsid()\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n"
    )
    pod = run.pod(0, 1, program=[program])
    run.assert_verdict(1, "program-failed", "exit code 3", within_s=15)
    assert not alive(int(re.search(r"LEFT (\d+)", pod.output)[1]))


SLOW_END = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "1":
    print("FAILS", flush=True)
    sys.exit(9)
time.sleep(4)
"""


@pytest.mark.parametrize(
    ("number", "after_s"), [(signal.SIGKILL, s) for s in (0.4, 2.5, 4.0)] + [(signal.SIGSTOP, 3.0)]
)
def test_a_node_that_is_lost_around_a_restart_in_place_ends_the_run(run, number, after_s):
    """Before, while and after the ranks of node 0 end; the join time-out is ten times as long."""
    flags = ("--join-timeout=120", "--heartbeat-timeout=6", "--max-restarts-in-place=5")
    for node in range(2):
        run.pod(node, 2, *flags, program=[run.script(SLOW_END)])
    until(lambda: "FAILS" in run.pods[1].output, "rank 1 fails")
    time.sleep(after_s)
    run.pods[1].started.process.send_signal(number)
    run.pods[0].started.wait()
    (verdict,) = run.pods[0].verdicts
    # Node 1 had failed before it was lost, or was lost after that.
    assert "cause=program-failed" in verdict or "cause=node-lost" in verdict, run.output
    assert "node 1 (pod run-1 on n1)" in verdict, run.output
    assert run.pods[0].seconds < 60, run.output
    assert "socket.send()" not in run.output


AGAIN = """
import os, signal, sys, time
stop, mark = [], os.path.join(sys.argv[1], "mark-" + os.environ["RANK"])
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
first = not os.path.exists(mark)
open(mark, "w").close()
if first and os.environ["RANK"] == "1":
    time.sleep(1)
    sys.exit(3)
while not stop:
    time.sleep(0.05)
print("SAVES", flush=True)
time.sleep(4)
open(os.path.join(sys.argv[1], "checkpoint"), "w").close()
sys.exit(75)
"""


@pytest.mark.parametrize("node", [0, 1])
def test_a_stop_during_a_restart_in_place_destroys_nothing(run, node):
    """Rank 0 of the first start still saves when the pod gets SIGTERM."""
    for index in range(2):
        run.pod(index, 2, "--max-restarts-in-place=2", program=[run.script(AGAIN), run.folder])
    until(lambda: "SAVES" in run.pods[0].output, "rank 0 saves")
    run.pods[node].started.process.send_signal(signal.SIGTERM)
    run.assert_verdict(143, "stopped", f"node {node}", within_s=60)
    assert (run.folder / "checkpoint").exists(), run.output


def test_the_launcher_of_a_chart_does_not_hide_a_package_gpuworker_of_the_program(run, tmp_path):
    folder = mount("ddp-run", tmp_path / "programs")
    own = tmp_path / "own" / "gpuworker"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("MINE = 'the package of the program'\n")
    program = run.script("import gpuworker; print(gpuworker.MINE)")
    pod = run.start(
        folder / "ddp-launch", "--join-timeout=30", "--", program, NNODES=1, NODE_RANK=0, NPROC_PER_NODE=2,
        MASTER_ADDR="localhost", MASTER_PORT=run.port, GLOO_SOCKET_IFNAME="", PYTHONPATH=f"{STAND_IN}:{own.parent}",
    )  # fmt: skip
    assert pod.wait() == 0, pod.output
    assert pod.output.count("the package of the program") == 2


def test_two_nodes_with_two_processes_form_a_world(world, tmp_path):
    """With a preset of the chart. PET_ variables that contradict the configuration are ignored."""
    program = (
        "-m",
        "gpuworker.accept.ddp_tests",
        "--device",
        "cpu",
        "--numel",
        "1000",
        "--train-smoke",
    )
    for node in range(2):
        strays = {"PET_NNODES": 7, "PET_RDZV_ID": "other"} if node else {}
        world.pod(
            node,
            2,
            "--join-timeout=120",
            program=[*program, "--report-dir", tmp_path],
            NPROC_PER_NODE=2,
            **strays,
        )
    assert world.wait() == [0, 0], world.output
    for pod in world.pods:
        assert f'[DDP] node={pod.node} phase="master ready, preflight" nodes=2' in pod.output
        assert (
            f'[DDP] node={pod.node} phase="ranks started" world=4 ranks={2 * pod.node},{2 * pod.node + 1}'
            in pod.output
        )
        assert f"[STEP] node={pod.node} " in pod.output and "first_step=done" in pod.output
    result = json.loads((tmp_path / "ddp_tests_result.json").read_text())
    assert (result["world"], result["ok"]) == (4, True)


def test_a_port_of_the_store_that_is_in_use_is_reported(world):
    program = world.script("import torch.distributed as dist\ndist.init_process_group('gloo')")
    with socket.create_server(("", world.port)):
        world.pod(0, 1, program=[program])
        world.assert_verdict(65, "port-in-use", "rank 0 of node 0", within_s=120)


def test_stacks_of_a_running_job_can_be_asked_for(run):
    text = "import os, time\ndef load():\n    print('waits', flush=True)\n    time.sleep(600)\n"
    program = run.script(text + "load() if os.environ['RANK'] == '1' else time.sleep(600)\n")
    for node in range(2):
        run.pod(node, 2, program=[program], TMPDIR=run.folder)
    until(lambda: "waits" in run.pods[1].output, "the program runs")
    killed = subprocess.Popen(["true"])
    killed.wait()
    (run.folder / f"ddp-launch-{killed.pid}-x/hook").mkdir(parents=True)  # is not waited for
    shown = run.start("-m", "gpuworker.launch.launcher", "stacks", TMPDIR=run.folder)
    assert shown.wait() == 0, shown.output
    assert "in load" in shown.output and "rank 0 of node 0" in shown.output
    for pod in run.pods:
        pod.started.process.send_signal(signal.SIGTERM)
    run.wait()
