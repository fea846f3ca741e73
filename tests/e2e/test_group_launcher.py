"""A group's task whose `torchrun` is ddp-launch, on real pods: worlds, causes of failures, and a
lost pod.
"""

from tests.helpers.group_pods import (
    all_succeed,
    each_workload,
    end,
    exit_code,
    install,
    output,
    rank,
    wait_for_output,
)
from tests.helpers.kube import Namespace, by_host, wait_until

PROGRAM = """
import os, signal, sys, time
import torch, torch.distributed as dist
stopped = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: stopped.fill_(1))
dist.init_process_group("gloo")
for step in range(int(os.environ["STEPS"])):
    together = stopped.clone()
    dist.all_reduce(together)
    if together.item():
        print("saved", flush=True)
        sys.exit(75)
    if dist.get_rank() == 1 and os.environ["FAULT"] == "exit":
        os._exit(9)
    print(f"[STEP] step={step} world={dist.get_world_size()} pod={os.environ['POD_NAME']}", flush=True)
    time.sleep(0.1)
print("[DONE]", flush=True)
dist.destroy_process_group()
"""
# As SkyPilot's documentation writes it.
TORCHRUN = """
MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=1 --node_rank=$SKYPILOT_NODE_RANK \\
  --master_addr=$MASTER_ADDR --master_port=29500 program.py
"""
TRAINERS = ("t-0", "t-1")


def start(space: Namespace, workload: str, run: str = TORCHRUN, fault: str = "", steps: int = 3):
    env = {"STEPS": str(steps), "FAULT": fault, "OMP_NUM_THREADS": "1"}
    task = {"numNodes": 2, "run": run, "env": env, "workdir": {"files": "code"}}
    files = {"code": {"program.py": {"text": PROGRAM}}}
    install(space, {"t": task}, files=files, workload=workload, networkPolicy={"enabled": True})


@each_workload
def test_the_ranks_of_a_task_form_a_world(namespace, workload):
    start(namespace, workload)
    all_succeed(namespace, *TRAINERS)
    for host in TRAINERS:
        lines = output(namespace, host)
        assert "[STEP] step=2 world=2" in lines and "\n[DONE]\n" in lines
        assert 'phase="master ready, preflight" nodes=2' in lines


def test_both_ranks_name_the_rank_that_failed(namespace):
    start(namespace, "jobs", fault="exit")
    pods = by_host(namespace.wait_for_end("grp", ranks=2))
    for host in TRAINERS:
        assert exit_code(pods[host]) == 1
        message = end(pods[host])["message"]
        assert (
            "(program-failed)" in message
            and "rank 1 of node 1" in message
            and "exit code 9" in message
        )


def test_a_node_that_ends_before_the_preflight_ends_the_other(namespace):
    start(namespace, "jobs", run='if [ "$NODE_RANK" = 1 ]; then sleep 5; exit 3; fi' + TORCHRUN)
    pods = by_host(namespace.wait_for_end("grp", ranks=2))
    assert (exit_code(pods["t-1"]), exit_code(pods["t-0"])) == (3, 1)
    assert "stopped: failed t-1 3" in output(namespace, "t-0")


@each_workload
def test_a_world_that_loses_a_pod_saves_and_forms_again(namespace, workload):
    start(namespace, workload, steps=150)
    for host in TRAINERS:
        wait_for_output(namespace, host, "[STEP] step=5 ")
    old = {host: rank(namespace, host)["metadata"]["name"] for host in TRAINERS}
    namespace.kubectl("delete", "pod", old["t-1"], "--wait=false")

    def succeeded():
        """The new pods; the Job keeps the stopped one of t-0."""
        pods = by_host(
            [pod for pod in namespace.pods("grp") if pod["status"]["phase"] == "Succeeded"]
        )
        return pods if set(pods) == set(TRAINERS) else None

    for host, pod in wait_until(succeeded, "both ranks ended well in new pods", 240).items():
        new = pod["metadata"]["name"]
        assert new != old[host]
        assert f"[STEP] step=149 world=2 pod={new}" in namespace.logs(new, "task")
