"""ddp-launch with --node-test: what the test of a node before the start means for the run."""

from __future__ import annotations

import signal
import time

import pytest

from tests.helpers.launchers import JOIN_TIMEOUT_S, Run
from tests.helpers.processes import until

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


def pods(run: Run, *flags: str, codes: tuple[int, ...], **variables: object) -> None:
    for node, code in enumerate(codes):
        run.pod(
            node, len(codes), *flags, FAULT_NODE_TEST=code, TMPDIR=temporary(run, node), **variables
        )


def temporary(run: Run, node: int):
    """A /tmp of its own, as every pod has."""
    folder = run.folder / f"tmp-{node}"
    folder.mkdir()
    return folder


SPARE = ("--node-test=gate", "--spares=1")
WORLD = """
from os import environ as env
print("rank {RANK} of {WORLD_SIZE}, node {NODE_RANK} of {NNODES}".format(**env), flush=True)
"""


def with_a_spare(run: Run, *codes: int, program: tuple = (), flags: tuple = ()) -> None:
    program = program or [run.script(WORLD)]
    for node, code in enumerate(codes):
        folder = temporary(run, node)
        run.pod(node, 2, *SPARE, *flags, program=program, FAULT_NODE_TEST=code, TMPDIR=folder)


@pytest.mark.parametrize("unfit", [0, 1, 2])
def test_a_spare_takes_the_place_of_an_unfit_node(run, unfit):
    """Also of node 0, which then serves and trains nothing."""
    with_a_spare(run, *(72 if node == unfit else 0 for node in range(3)))
    assert run.wait() == [0, 0, 0], run.output
    fit = [pod for pod in run.pods if pod.node != unfit]
    for rank, pod in enumerate(fit):
        assert f"rank {rank} of 2, node {rank} of 2" in pod.output, run.output
    assert run.output.count("ranks started") == 2
    assert run.pods[unfit].termination_message.startswith(f"node=n{unfit} gpu=GPU-7 act=RMA")


def test_a_spare_that_nobody_needs_ends_well_however_late_it_is(run):
    until_later = "import time; time.sleep(6)"
    with_a_spare(run, 0, 0, program=[run.script(WORLD + until_later)])
    until(lambda: run.output.count("of 2, node") == 2, "the world", 30)
    run.pod(2, 2, *SPARE, FAULT_NODE_TEST=0, TMPDIR=temporary(run, 2))
    assert run.wait() == [0, 0, 0], run.output
    assert "ranks started" not in run.pods[2].output and 'phase="left out"' in run.pods[2].output
    assert run.pods[2].seconds < run.pods[0].seconds, run.output


def test_the_same_nodes_start_again_in_place(run):
    at_first = "import os, sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    again = ("--max-restarts-in-place=1",)
    with_a_spare(run, 72, 0, 0, program=[run.script(WORLD + at_first)], flags=again)
    assert run.wait() == [0, 0, 0], run.output
    found = [run.output.count(f"\nrank {rank} of 2, node {rank} of 2") for rank in range(2)]
    assert found == [2, 2], run.output


def test_a_stop_of_node_0_that_only_serves_ends_the_run(run):
    with_a_spare(run, 72, 0, 0, program=[run.script(WORLD + "import time; time.sleep(600)")])
    until(lambda: run.output.count("of 2, node") == 2, "the world", 30)
    run.pods[0].started.process.send_signal(signal.SIGTERM)
    run.assert_verdict(143, "stopped", "node 0 (pod run-0 on n0) got SIGTERM", within_s=60)


def test_more_unfit_nodes_than_spares_end_all_and_are_named(run):
    with_a_spare(run, 0, 72, 72)
    run.assert_verdict(72, "node-test-failed", "(pod run-1 on n1)", "(pod run-2 on n2)")


@pytest.mark.parametrize("unfit", [0, 1])
def test_one_unfit_node_ends_all_at_once_with_its_act(run, unfit):
    begin = time.monotonic()
    pods(run, "--node-test=gate", codes=(72, 0, 0) if unfit == 0 else (0, 72, 0))
    run.assert_verdict(
        72, "node-test-failed", f"node {unfit} (pod run-{unfit} on n{unfit})", "gpu=GPU-7 act=RMA"
    )
    assert time.monotonic() - begin < JOIN_TIMEOUT_S, "nobody waited for the join time-out"
    assert "ranks started" not in run.output


def test_an_unfit_node_does_not_wait_for_others_that_have_not_started(run):
    run.pod(0, 3, "--node-test=gate", FAULT_NODE_TEST=72, TMPDIR=temporary(run, 0))
    run.assert_verdict(72, "node-test-failed", "gpu=GPU-7", within_s=JOIN_TIMEOUT_S - 5)


def test_fit_nodes_start(run):
    pods(run, "--node-test=gate", codes=(0, 0))
    assert run.wait() == [0, 0], run.output
    for pod in run.pods:
        assert 'phase="node test" mode=gate exit_code=0' in pod.output
        assert pod.output.index("node test") < pod.output.index("ranks started")


def test_a_report_never_blocks_and_leaves_a_record(run):
    pods(run, "--node-test=report", codes=(72, 3, 1))
    assert run.wait() == [0, 0, 0], run.output
    for node, (pod, code) in enumerate(zip(run.pods, (72, 3, 1), strict=True)):
        assert f'phase="node test" mode=report exit_code={code}' in pod.output
        assert pod.termination_message.startswith(f"node=n{node} gpu=GPU-7 act=RMA code={code}\n")


@pytest.mark.parametrize("code", [1, 3, 143])
def test_a_test_without_a_pass_is_no_pass(run, code):
    pods(run, "--node-test=gate", codes=(code,))
    run.assert_verdict(72, "node-test-failed", f"code={code}")


def test_the_fourth_start_counts(run):
    """Kubernetes starts new pods without end for a code that does not count."""
    pods(run, "--node-test=gate", codes=(0, 72), ATTEMPT=1, GPU_CHARTS_ATTEMPTS_IGNORED=2)
    run.assert_verdict(1, "restart-loop", "gpu=GPU-7 act=RMA", "in start 4")


def test_the_third_start_does_not_count(run):
    pods(run, "--node-test=gate", codes=(0, 72), ATTEMPT=0, GPU_CHARTS_ATTEMPTS_IGNORED=2)
    run.assert_verdict(72, "node-test-failed")


def test_without_gpus_that_somebody_counts_it_is_wrong_usage(run):
    """The real program: it never takes a rehearsal for a test."""
    run.pod(0, 1, "--node-test=gate", TMPDIR=temporary(run, 0), NUM_GPUS_PER_NODE="")
    run.assert_verdict(2, "usage")


def test_it_is_off_by_default(run):
    pods(run, codes=(72,))
    assert run.wait() == [0] and "node test" not in run.output


def test_the_real_test_has_ended_before_the_program_starts(start, tmp_path):
    run = Run(start, tmp_path, torch=True)
    program = run.script(
        "import pathlib\n"
        "lines = [path.read_bytes() for path in pathlib.Path('/proc').glob('[0-9]*/cmdline')]\n"
        f"assert not [line for line in lines if b'accept_node' in line and b'{tmp_path}' in line]\n"
    )
    folder = temporary(run, 0)
    run.pod(
        0,
        1,
        "--node-test=gate",
        "--join-timeout=150",
        program=[program],
        TMPDIR=folder,
        NUM_GPUS_PER_NODE=0,
    )
    assert run.wait() == [0], run.output
    assert "check=compute verdict=PASS" in run.output
    assert run.pods[0].termination_message.startswith("PASS (CPU rehearsal)")
