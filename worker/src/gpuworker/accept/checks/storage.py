"""The volumes of the job keep the data that all ranks write, and return it unchanged and fast enough.

Without volumes the scratch folder is tested, and the report notes it. On a volume that the nodes
share: ddp-launch -m gpuworker.accept.ddp_tests --storage /out

All ranks write a checkpoint with fsync, then read uncached shards: the access pattern of training.
MB/s (1e6 bytes) = bytes of all ranks / time of the slowest. Latencies are those of blocks of 1 MiB.
On a read-only volume the existing files are read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from gpuworker.accept.check_spec import WORLD, Measure, Plan, Spec
from gpuworker.judgement.report import FAIL, INCOMPLETE, Evidence, Measurement

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
BLOCK = 1 << 20
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL = "full while the checkpoint was written"
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.distributed import local_world

    mib = {"quick": 8, "full": 64, "burn-in": 64}[plan.level]
    if plan.device == "cuda":
        mib *= 16
    paths = {name: str(path) for name, path in plan.volumes.items()} or {
        "scratch": str(plan.scratch)
    }
    found = evidence(local_world.run(plan, run, volumes=paths, mib=mib), mib)
    if not plan.volumes:
        without_space(found)
        found.facts["note"] = "no volume is mounted: the scratch folder was tested"
    return found


def measure_world(context, plan: Plan) -> Evidence:

    mib = MIB_ACROSS_NODES[plan.device]
    paths = {name: str(path) for name, path in plan.volumes.items()}
    results = context.gather("storage", run(context, paths, mib))
    return evidence(results, mib) if results else Evidence()


def run(context, volumes: dict[str, str], mib: int) -> dict:
    """Per volume: seconds and bytes of this rank's writing and reading, and the error."""
    return {
        "label": context.label,
        "volumes": {name: _volume(context, name, path, mib) for name, path in volumes.items()},
    }


def _volume(context, name: str, path: str, mib: int) -> dict:
    seen: dict = {"path": path, "error": "", "read_only": False}
    seen |= {"write_s": 0.0, "read_bytes": 0, "latencies_s": []}
    folder = Path(path) / f".storage-test-{os.environ.get('RUN_ID', 'local')}"
    mine, neighbour = folder / f"shard-{context.rank}", (context.rank + 1) % context.size
    try:
        with _errors_into(seen, name):
            folder.mkdir(exist_ok=True)
        context.barrier(f"storage/{name}/begin")  # all write at the same time
        with _errors_into(seen, name):
            if folder.exists():
                full = context.injected("full-volume")
                seen["write_s"] = _write(Path("/dev/full") if full else mine, context.rank, mib)
                if context.injected("damaged-file"):
                    with mine.open("r+b") as file:
                        file.seek(BLOCK // 2)
                        file.write(b"damaged")
        context.store.add(f"storage/{name}/writers", int(seen["write_s"] > 0))
        context.barrier(f"storage/{name}/written")
        all_wrote = context.store.add(f"storage/{name}/writers", 0) == context.size
        with _errors_into(seen, name):
            # other nodes' shards are missing on a volume of this node alone
            shard = folder / f"shard-{neighbour}"
            if all_wrote and shard.exists():
                _read(seen, shard, neighbour, mib, name)
            elif seen["write_s"]:
                _read(seen, mine, context.rank, mib, name)
            elif seen["read_only"]:
                _read_existing_files(seen, context, Path(path), mib)
        # no rank removes a shard that another rank still reads
        context.barrier(f"storage/{name}/read")
    finally:
        with contextlib.suppress(OSError):  # read-only, or not empty: the last rank removes it
            mine.unlink(missing_ok=True)
            folder.rmdir()
    return seen


@contextlib.contextmanager
def _errors_into(seen: dict, name: str) -> Iterator[None]:
    """Record errors of the volume and continue: the other ranks wait for this one."""
    try:
        yield
    except OSError as error:
        if error.errno in READ_ONLY:
            seen["read_only"] = True
        else:
            seen["error"] = f"{name} ({seen['path']}): {_describe(error, Path(seen['path']))}"
            seen["kind"] = "volume-full" if error.errno in NO_SPACE else "volume"


def _blocks(rank: int, mib: int) -> Iterator[bytes]:
    """The content of a shard: each block starts with its position, the rest cannot be
    compressed.
    """
    body = random.Random(rank).randbytes(BLOCK - 16)
    return (rank.to_bytes(8, "big") + index.to_bytes(8, "big") + body for index in range(mib))


def _write(path: Path, rank: int, mib: int) -> float:
    """Seconds until fsync returns."""
    blocks = _blocks(rank, mib)
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for block in blocks:
            view = memoryview(block)
            while view:
                view = view[os.write(file.fileno(), view) :]
        os.fsync(file.fileno())
    return time.perf_counter() - start


def _read(seen: dict, path: Path, rank: int, mib: int, name: str) -> None:
    """Read a shard that this test wrote, without the cache, and compare it."""
    found = _timed_blocks(seen, path, mib * BLOCK)
    for number, right in enumerate(_blocks(rank, mib)):
        if (block := next(found, b"")) != right:
            pairs = enumerate(zip(block, right, strict=False))
            first = next((index for index, (a, b) in pairs if a != b), len(block))
            place = f"from byte {number * BLOCK + first} on, of {mib} MiB"
            seen["error"] = f"{name} ({path}): what was read is not what was written, {place}"
            seen["kind"] = "volume-bytes"
            return


def _read_existing_files(seen: dict, context, path: Path, mib: int) -> None:
    """Read existing files of the volume, different ones on each rank."""
    files = sorted(file for file in _some_files(path) if file.stat().st_size >= BLOCK)
    for file in files[context.rank % max(1, len(files)) :: context.size]:
        for _ in _timed_blocks(seen, file, mib * BLOCK - seen["read_bytes"]):
            pass


def _some_files(path: Path, limit: int = 1000) -> list[Path]:
    found: list[Path] = []
    for folder, _, names in os.walk(path):
        found += [file for file in (Path(folder, name) for name in names) if file.is_file()]
        if len(found) >= limit:
            break
    return found[:limit]


def _timed_blocks(seen: dict, path: Path, most: int) -> Iterator[bytes]:
    """Blocks of a file, at most `most` bytes; adds their times and sizes to `seen`."""
    with path.open("rb", buffering=0) as file:
        # cached data would not test the storage
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(most // BLOCK):
            start = time.perf_counter()
            data = b""
            while len(data) < BLOCK and (more := os.read(file.fileno(), BLOCK - len(data))):
                data += more
            seen["latencies_s"].append(time.perf_counter() - start)
            seen["read_bytes"] += len(data)
            if not data:
                return
            yield data


def _describe(error: OSError, path: Path) -> str:
    if error.errno not in NO_SPACE:
        return f"cannot be written: {error.strerror}"
    free = shutil.disk_usage(path).free
    return f"{FULL} ({error.strerror}; {free / 1e6:.0f} MB free)"


def evidence(results: list[dict], mib: int) -> Evidence:
    found = Evidence(facts={"ranks": len(results), "mib_of_each_rank": mib})
    for name in results[0]["volumes"]:
        seen = [result["volumes"][name] for result in results]
        faults = [rank for rank, each in enumerate(seen) if each["error"]]
        for rank in faults[:4]:
            words = f"{results[rank]['label']}: {seen[rank]['error']}"
            found.fail(seen[rank]["kind"], words, f"rank {rank}", volume=name)
        found.facts[name] = {"path": seen[0]["path"], "read_only": seen[0]["read_only"]}
        if all(s["write_s"] for s in seen):
            rate = len(seen) * mib * BLOCK / max(s["write_s"] for s in seen) / 1e6
            found.measurements.append(Measurement("storage_write", rate, "MB/s", name))
        latencies = sorted(latency for s in seen for latency in s["latencies_s"])
        if latencies:
            rate = (
                sum(s["read_bytes"] for s in seen) / max(sum(s["latencies_s"]) for s in seen) / 1e6
            )
            p99 = statistics.quantiles(latencies, n=100)[-1] if len(latencies) > 1 else latencies[0]
            found.measurements.append(Measurement("storage_read", rate, "MB/s", name))
            found.measurements.append(Measurement("storage_read_p99", p99 * 1e3, "ms", name))
            found.samples[f"{name}_read_s"] = latencies
        elif not faults:
            words = (
                f"{name} ({seen[0]['path']}): cannot be written and holds no file of 1 MiB to read"
            )
            found.incomplete("volume", words, volume=name)
    if all(s["read_only"] for r in results for s in r["volumes"].values()):
        found.inapplicable["storage_write"] = "all volumes are read-only"
    elif found.has(FAIL):  # the error explains the missing numbers
        measured = {measurement.name for measurement in found.measurements}
        for name in ("storage_write", "storage_read", "storage_read_p99"):
            if name not in measured:
                found.inapplicable[name] = "the volume failed"
    return found


def without_space(found: Evidence) -> None:
    """The scratch folder is not a volume of a job: that it is too small for the test is not a
    fault of the node.
    """
    needed = found.facts["ranks"] * found.facts["mib_of_each_rank"]
    act = f"the test needs {needed} MiB: mount a volume of the job (--volume), or set TMPDIR to a larger folder"
    for problem in found.problems:
        if problem.kind == "volume-full":
            problem.verdict, problem.reason = INCOMPLETE, f"{problem.reason}; {act}"
