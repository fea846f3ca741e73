"""The volumes of the job keep the data that all ranks write, and return it unchanged and fast enough.

Without volumes the scratch folder is tested, and the report notes it. On a volume that the nodes share:
ddp-launch -m gpuworker.accept.ddp_tests --storage /out
"""

from __future__ import annotations

from gpuworker.accept.check_spec import WORLD, Measure, Plan, Spec
from gpuworker.judgement.report import Evidence

# Wait for a CPU: the time slice of Linux with 8 CPUs and more, 0.75 ms * (1 + log2 8)
# (kernel/sched/fair.c).
SCHEDULER_MS = 3.0
SPEC = Spec(
    tag="STORAGE",
    seconds={"quick": 5, "full": 60, "burn-in": 60},
    process=WORLD,
    across_nodes="test a volume; may be repeated",
    takes_volumes=True,
    measures={
        "storage_write": Measure(
            "MB/s",
            "all ranks write a checkpoint, until fsync returns",
            each="node",
            meaningful=(1, 1e6),
            optional=True,
        ),
        "storage_read": Measure(
            "MB/s", "all ranks read shards that are not cached", each="node", meaningful=(1, 1e6)
        ),
        "storage_read_p99": Measure(
            "ms",
            "99th percentile of reading 1 MiB",
            of_others=True,
            better="lower",
            noise=SCHEDULER_MS,
            each="node",
            meaningful=(1e-3, 60e3),
        ),
    },
    faults={
        "full-volume": "volume-full",
        "damaged-file": "volume-bytes",
    },
)


MIB_ACROSS_NODES = {"cuda": 1024, "cpu": 8}  # per rank


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.checks.storage import volumes
    from gpuworker.accept.distributed import local_world

    mib = {"quick": 8, "full": 64, "burn-in": 64}[plan.level]
    if plan.device == "cuda":
        mib *= 16
    paths = {name: str(path) for name, path in plan.volumes.items()} or {
        "scratch": str(plan.scratch)
    }
    found = volumes.evidence(local_world.run(plan, volumes.run, volumes=paths, mib=mib), mib)
    if not plan.volumes:
        volumes.without_space(found)
        found.facts["note"] = "no volume is mounted: the scratch folder was tested"
    return found


def measure_world(context, plan: Plan) -> Evidence:
    from gpuworker.accept.checks.storage import volumes

    mib = MIB_ACROSS_NODES[plan.device]
    paths = {name: str(path) for name, path in plan.volumes.items()}
    results = context.gather("storage", volumes.run(context, paths, mib))
    return volumes.evidence(results, mib) if results else Evidence()
