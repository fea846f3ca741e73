"""ddp-launch with torch and Gloo on the loopback interface: worlds, and faults during training."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.helpers.launchers import Run
from tests.helpers.processes import descendants, until

pytestmark = pytest.mark.matrix  # minutes of processor time

# Trains with DDP for STEPS steps; FAULT is the fault of rank 1 in step 5.
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Fault(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()
    @staticmethod
    def backward(context, gradient):
        raise ValueError("gradient is NaN")
for step in range(int(os.environ.get("STEPS", 8))):
    fault = os.environ.get("FAULT") if rank == 1 and step == 5 else None
    if fault == "end early":
        break
    if fault == "wait":
        print("waits", flush=True)
        time.sleep(600)
    loss = model(torch.ones(4, 8)).sum()
    if fault == "raise in backward":
        loss = Fault.apply(loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if rank == 0 or not os.environ.get("FAULT"):
    dist.barrier()
print(f"rank {rank} of {dist.get_world_size()} on node {os.environ['NODE_RANK']} is done", flush=True)
dist.destroy_process_group()
"""
PATIENT = ("--join-timeout=120",)


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path, torch=True)


def test_two_nodes_with_two_processes_form_a_world(run, tmp_path):
    """With a preset of the chart. PET_ variables that contradict the configuration are ignored."""
    program = ("-m", "gpuworker.accept.ddp_tests", "--device", "cpu", "--numel", "1000", "--train-smoke")
    for node in range(2):
        strays = {"PET_NNODES": 7, "PET_RDZV_ID": "other"} if node else {}
        run.pod(node, 2, *PATIENT, program=[*program, "--report-dir", tmp_path], NPROC_PER_NODE=2, **strays)
    assert run.wait() == [0, 0], run.output
    for pod in run.pods:
        assert f'[DDP] node={pod.node} phase="master ready, preflight" nodes=2' in pod.output
        assert (
            f'[DDP] node={pod.node} phase="ranks started" world=4 ranks={2 * pod.node},{2 * pod.node + 1}' in pod.output
        )
        assert f"[STEP] node={pod.node} " in pod.output and "first_step=done" in pod.output
    result = json.loads((tmp_path / "ddp_tests_result.json").read_text())
    assert (result["world"], result["ok"]) == (4, True)


def node_of_rank(run: Run) -> dict[int, int]:
    return {int(rank): int(node) for rank, node in re.findall(r"rank (\d+) of \d+ on node (\d+) is done", run.output)}


def test_ranks_follow_node_indices(run):
    for node in (2, 0, 1):
        run.pod(node, 3, *PATIENT, program=[run.script(TRAIN)])
    assert run.wait() == [0, 0, 0], run.output
    assert node_of_rank(run) == {0: 0, 1: 1, 2: 2}


def run_with_fault(run: Run, fault: str, *flags: str, **variables: object) -> None:
    program = run.script(TRAIN)
    for node in range(2):
        run.pod(node, 2, *PATIENT, *flags, program=[program], FAULT=fault, **variables)


def test_flags_of_the_program_that_begin_as_torchrun_s_do_arrive(run):
    program = run.script("import sys; print('flags', sys.argv[1:])")
    run.pod(0, 1, *PATIENT, program=[program, "--run", "a", "--log", "b", "--max=3", "--node", "-m"])
    assert run.wait() == [0], run.output
    assert "flags ['--run', 'a', '--log', 'b', '--max=3', '--node', '-m']" in run.output


def test_a_port_of_the_store_that_is_in_use_is_reported(run):
    with socket.create_server(("", run.port)):
        run.pod(0, 1, *PATIENT, program=[run.script(TRAIN)])
        run.assert_verdict(65, "port-in-use", "rank 0 of node 0", within_s=120)


def test_an_exception_in_backward_is_named(run):
    run_with_fault(run, "raise in backward")
    run.assert_verdict(
        1,
        "program-failed",
        "rank 1 of node 1 (pod run-1 on n1)",
        "ValueError: gradient is NaN",
        "in backward",
        within_s=120,
    )
    assert "Traceback" in run.pods[1].output


def test_a_rank_that_ends_early_is_named(run):
    run_with_fault(run, "end early")
    run.assert_verdict(1, "early-exit", "rank 1 of node 1 (pod run-1 on n1)", within_s=120)


def test_a_rank_killed_during_training_is_named(run):
    run_with_fault(run, "wait", "--collective-timeout=60")
    until(lambda: "waits" in run.pods[1].output, "step 5")
    rank = descendants(run.pods[1].started.process.pid)[-1]
    os.kill(rank, signal.SIGKILL)
    run.assert_verdict(1, "killed", "rank 1 of node 1 (pod run-1 on n1)", "SIGKILL", "waits", within_s=120)


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "elsewhere"])
def test_the_rank_that_misses_a_collective_is_named(run, frozen):
    """The verdict names the rank that is not in the collective."""
    timeout = 15  # also for the start of the world, on a busy machine
    run_with_fault(run, "wait", f"--collective-timeout={timeout}", f"--output-dir={run.folder}")
    until(lambda: "waits" in run.pods[1].output, "step 5")
    if frozen:
        os.kill(descendants(run.pods[1].started.process.pid)[-1], signal.SIGSTOP)
    started = time.monotonic()
    location = "is stopped by a signal (SIGSTOP)" if frozen else "is at "
    run.assert_verdict(
        70,
        "collective-timeout",
        f"rank 1 of node 1 (pod run-1 on n1) {location}",
        "rank 0 of node 0",
        within_s=120,
    )
    assert time.monotonic() - started < timeout + 5 + 10


def run_with_short_timeout(run: Run, program: Path) -> None:
    for node in range(2):
        run.pod(node, 2, *PATIENT, "--collective-timeout=8", program=[program])


def test_a_rank_that_misses_the_first_collective_is_named(run):
    program = run.script("import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(600)\n" + TRAIN)
    run_with_short_timeout(run, program)
    run.assert_verdict(70, "collective-timeout", "rank 1 of node 1 (pod run-1 on n1) is at ", within_s=120)


def test_a_collective_of_a_subgroup_has_a_time_out(run):
    """FSDP, tensor and pipeline parallelism use groups of their own."""
    program = run.script(
        "import os, time\nimport torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "group = dist.new_group([0, 1])\ndist.all_reduce(torch.ones(1))\n"
        "if os.environ['RANK'] == '1':\n    time.sleep(600)\n"
        "dist.all_reduce(torch.ones(1), group=group)\n"
    )
    run_with_short_timeout(run, program)
    run.assert_verdict(
        70,
        "collective-timeout",
        f"rank 1 of node 1 (pod run-1 on n1) is at {program.name}:7 in <module>",
        "1 collectives of process group 1: rank 1 (0)",
        within_s=120,
    )


def test_ranks_in_different_collectives_are_all_named(run):
    """A barrier on rank 0 only: both ranks wait, and each waits for the other."""
    program = run.script(
        "import os\nimport torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "def evaluate():\n    dist.barrier()\n"
        "def step():\n    dist.broadcast(torch.ones(1), src=0)\n"
        "dist.all_reduce(torch.ones(1))\n"
        "evaluate() if os.environ['RANK'] == '0' else step()\ndist.all_reduce(torch.ones(9))\n"
    )
    run_with_short_timeout(run, program)
    run.assert_verdict(
        70, "collective-timeout", f"{program.name}:5 in evaluate", f"{program.name}:7 in step", within_s=120
    )


def test_a_rank_blocked_outside_a_collective_is_the_culprit(run):
    """Its innermost line is in the standard library, below torch's data loader; the verdict has the program's line."""
    program = run.script(
        "import os, time\nimport torch, torch.distributed as dist\nfrom torch.utils.data import DataLoader\n"
        "class Slow(torch.utils.data.Dataset):\n    def __len__(self):\n        return 4\n"
        "    def __getitem__(self, index):\n        time.sleep(600)\n"
        "dist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1))\n"
        "if os.environ['RANK'] == '1':\n    for batch in DataLoader(Slow(), num_workers=1):\n        pass\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    run_with_short_timeout(run, program)
    run.assert_verdict(
        70,
        "collective-timeout",
        f"rank 1 of node 1 (pod run-1 on n1) is at {program.name}:12 in <module>",
        within_s=120,
    )


def test_a_slow_import_has_a_cause_of_its_own(run):
    """Rank 0 waits in the store for a rank whose file system is slow."""
    (run.folder / "slow").mkdir()
    (run.folder / "slow" / "slowly.py").write_text("import time\ntime.sleep(600)\n")
    program = run.script(
        "import os, sys\nsys.path.append(sys.argv[1])\n"
        "if os.environ['RANK'] == '1':\n    import slowly\n"
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    )
    for node in range(2):
        flags = (*PATIENT, "--collective-timeout=6")
        run.pod(node, 2, *flags, program=[program, run.folder / "slow"])
    run.assert_verdict(69, "slow-import", "rank 1 of node 1 (pod run-1 on n1)", within_s=120)


def test_stacks_of_a_running_job_can_be_asked_for(run):
    for node in range(2):
        run.pod(node, 2, *PATIENT, program=[run.script(TRAIN)], FAULT="wait", TMPDIR=run.folder)
    until(lambda: "waits" in run.pods[1].output, "step 5")
    shown = run.start("-m", "gpuworker.launch.launcher", "stacks", TMPDIR=run.folder)
    assert shown.wait() == 0, shown.output
    first = shown.output.index("rank 1 of node 1")
    assert "in <module>" in shown.output[first:]
    for pod in run.pods:
        pod.started.process.send_signal(signal.SIGTERM)
    run.wait()


def test_a_program_in_place_of_python_keeps_its_time_outs(run):
    """It starts itself again (exec), as programs do that set LD_LIBRARY_PATH."""
    program = run.script(
        "import os, sys, time\n"
        "if len(sys.argv) < 2:\n    os.execv(sys.executable, [sys.executable, '-u', __file__, 'again'])\n"
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1))\n"
        "def load():\n    time.sleep(600)\n"
        "if os.environ['RANK'] == '1':\n    load()\ndist.all_reduce(torch.ones(1))\n"
    )
    run_with_short_timeout(run, program)
    place = f"rank 1 of node 1 (pod run-1 on n1) is at {program.name}:8 in load"
    run.assert_verdict(70, "collective-timeout", place, within_s=120)
