"""ddp-launch with a real torchrun on loopback: it ends, says how, and leaves nothing behind."""

import json
import signal
import time

from processes import alive, descendants, free_port, until

NOBODY = "x" * 64 + ".invalid"  # too long for a label of DNS: no question about it leaves this machine
LAUNCH = ("-m", "gpuworker.launch.ddp")


def contract(rank: int = 0, nodes: int = 1, **changes: object) -> dict[str, object]:
    plan = {"NNODES": nodes, "NODE_RANK": rank, "NPROC_PER_NODE": 1, "MASTER_ADDR": "localhost"}
    return plan | {"MASTER_PORT": free_port(), "RUN_ID": "test", "ATTEMPT": 0} | changes


def test_two_nodes_form_one_world(start, tmp_path):
    port = free_port()
    program = ("gpuworker.accept.ddp_tests", "--device", "cpu", "--numel", "1000", "--report-dir", tmp_path)
    # The second node has what a bare torchrun would read, and it contradicts the plan.
    strays = [{}, {"PET_NNODES": 7, "PET_RDZV_ID": "other"}]
    nodes = [
        start(*LAUNCH, "--deadline", "90", "--", "-m", *program, **contract(rank, 2, MASTER_PORT=port, **strays[rank]))
        for rank in (1, 0)
    ]
    codes = [node.wait() for node in nodes]
    assert codes == [0, 0], [node.output for node in nodes]
    for rank, node in zip((1, 0), nodes, strict=True):
        lines = node.stdout.read_text().splitlines()
        assert lines[0].startswith(f"[ENV] node={rank} nnodes=2 nproc_per_node=1 master=localhost:{port} run_id=test")
        assert lines[-1] == f"[DONE] node={rank} world=2"
        assert f"is_host={'true' if rank == 0 else 'false'}" in node.output
    result = json.loads((tmp_path / "ddp_tests_result.json").read_text())
    assert (result["world"], result["ok"]) == (2, True)


def test_a_failing_program_fails_the_run(start, tmp_path, termination_log):
    script = tmp_path / "train.py"
    script.write_text("import sys; sys.exit(9)")
    node = start(*LAUNCH, "--", script, **contract())
    assert node.wait() == 1
    why = "torchrun exited 1: the error is above this line"
    assert node.stdout.read_text().splitlines()[-1] == f'[FATAL] node=0 exit_code=1 why="{why}"'
    assert termination_log.read_text() == f"exit code 1: {why}"


def test_a_stopped_run_leaves_no_child(start, tmp_path, termination_log):
    script = tmp_path / "train.py"
    script.write_text("import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)")
    node = start(*LAUNCH, "--", script, tmp_path / "training", **contract())
    until((tmp_path / "training").exists, "the program runs")
    children = descendants(node.process.pid)
    assert len(children) >= 2, "torchrun and the program"
    node.process.send_signal(signal.SIGTERM)
    assert node.wait(60) == 143
    assert termination_log.read_text() == "exit code 143: stopped by SIGTERM"
    until(lambda: not any(map(alive, children)), "no child is left", 30)


def test_a_master_that_does_not_resolve_is_named_in_time(start, termination_log):
    begin = time.monotonic()
    node = start(*LAUNCH, "--deadline", "2", "--", "train.py", **contract(MASTER_ADDR=NOBODY))
    assert node.wait() == 64
    assert time.monotonic() - begin < 60
    why = f"{NOBODY} did not resolve within 2 s: is the pod of node 0 running?"
    assert termination_log.read_text() == f"exit code 64: {why}"
    assert f'[FATAL] node=0 exit_code=64 why="{why}"' in node.output
