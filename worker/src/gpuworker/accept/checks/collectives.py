"""All-reduce between processes of this node, one a GPU (two on the CPU), gives right sums."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from gpuworker.accept.registry import Evidence, Measure, Plan, Spec
from gpuworker.accept.report import Measurement

SPEC = Spec(
    tag="DDP",
    seconds={"quick": 10, "full": 60, "burn-in": 600},
    measures={"allreduce_busbw": Measure("GB/s", "bus bandwidth of all-reduce", limit="busbw_node", each="node")},
)


def measure(plan: Plan) -> Evidence:
    processes = plan.gpus if plan.device == "cuda" else plan.processes
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    options = ["--device", plan.device, "--report-dir", str(plan.scratch)]
    command = [*torchrun, "-m", "gpuworker.accept.ddp_tests", *options]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    path = plan.scratch / "ddp_tests_result.json"
    if done.returncode:
        sys.stderr.write(done.stderr)  # the whole story for the pod's log
    result = json.loads(path.read_text()) if path.exists() else None
    if result is None or (done.returncode and result["ok"]):  # right sums of a world that then broke are no evidence
        return Evidence(missing=[f"torchrun exited {done.returncode}: {_cause(done.stderr)}"])
    if result["world"] != processes:
        return Evidence(missing=[f"{result['world']} processes took part, {processes} expected"])
    evidence = Evidence([Measurement("allreduce_busbw", result["busbw_gbps"], "GB/s")], facts=result)
    if not result["ok"]:
        wrong, rounds = result["wrong_iters"], result["iters"] + 1
        evidence.wrong.append(f"all-reduce gave wrong sums in {wrong} of {rounds} rounds")
    return evidence


def _cause(stderr: str) -> str:
    """The first error in torchrun's output; what follows is torchrun's own account of it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"^(\[rank\d+\]: )?[\w.]*(Error|Exception): \S|exitcode: ", line)]
    return (errors + lines[-1:] + ["no output"])[0]
