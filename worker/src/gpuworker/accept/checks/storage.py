"""The volumes of the job keep what all ranks write, and give it back unchanged and fast enough.

Without volumes the scratch folder stands in, and the report says so. On a volume that the nodes share:
ddp-launch -m gpuworker.accept.ddp_tests --storage /out
"""

from __future__ import annotations

from gpuworker.accept.registry import Evidence, Measure, Plan, Spec

SPEC = Spec(
    tag="STORAGE",
    seconds={"quick": 5, "full": 60, "burn-in": 60},
    measures={
        "storage_write": Measure("MB/s", "all ranks write a checkpoint, until fsync returns", each="node"),
        "storage_read": Measure("MB/s", "all ranks read shards that no cache holds", each="node"),
        "storage_read_p99": Measure("ms", "99th percentile of reading 1 MiB", better="lower", each="node"),
    },
    faults={
        "full-volume": r"rank \d+ \(node \S+, \S+\): \w+ \(\S+\): full while the checkpoint was written",
        "damaged-file": r"rank \d+ \(node \S+, \S+\): \w+ \(\S+\): what was read is not what was written, from byte",
    },
)


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.distributed import local_world, storage

    mib = {"quick": 8, "full": 64, "burn-in": 64}[plan.level]
    if plan.device == "cuda":
        mib *= 16
    volumes = {name: str(path) for name, path in plan.volumes.items()} or {"scratch": str(plan.scratch)}
    found = storage.evidence(local_world.run(plan, storage.run, volumes=volumes, mib=mib), mib)
    if not plan.volumes:
        found.facts["note"] = "no volume is mounted: this was the scratch folder"
    return found
