"""The volumes of the job keep what all ranks write, and return it unchanged and fast enough.

Without volumes the scratch folder is tested, and the report notes it. On a volume that the nodes
share: ddp-launch -m gpuworker.accept.ddp_tests --storage /out

All ranks write a checkpoint with fsync, then read uncached shards: the access pattern of training.
MB/s (1e6 bytes) = bytes of all ranks / time of the slowest. Latencies are those of blocks of 1 MiB.
On a read-only volume the existing files are read.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from gpuworker.judgement.check_spec import Measure, Plan, Spec
from gpuworker.judgement.report import FAIL, INCOMPLETE, Evidence

# Wait for a CPU: the time slice of Linux with 8 CPUs and more, 0.75 ms * (1 + log2 8)
# (kernel/sched/fair.c).
SCHEDULER_MS = 3.0
SPEC = Spec(
    tag="STORAGE",
    seconds={"quick": 8, "full": 63, "burn-in": 63},
    across_nodes="test a volume; may be repeated",
    ranks="storage",
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
SCRATCH = "scratch"  # the volume, if there is none
NAMED = 4  # ranks of a fault of a volume
BLOCK = 1 << 20
MOST_FILES = 1000  # of a read-only volume that are looked at
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def run(context, plan: Plan) -> dict:
    """Per volume: seconds and bytes of this rank's writing and reading, and the error."""
    volumes = plan.volumes or {SCRATCH: plan.scratch}
    mib = mib_of(plan, context.nodes)
    return {
        "label": context.label,
        "volumes": {name: _volume(context, name, path, mib) for name, path in volumes.items()},
    }


def mib_of(plan: Plan, nodes: int) -> int:
    """Of each rank. Memory of a shared filer would hold less."""
    mib = 8 if plan.level == "quick" and nodes == 1 else 64
    return mib * 16 if plan.device == "cuda" else mib


def _volume(context, name: str, path: Path, mib: int) -> dict:
    seen: dict = {"path": str(path), "problem": None, "read_only": False}
    seen |= {"write_s": 0.0, "latencies_s": []}
    folder = path / f".storage-test-{os.environ.get('RUN_ID', 'local')}"
    part, mine = (folder / f"{word}-{context.rank}" for word in ("part", "shard"))

    def begin() -> None:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            seen["read_only"] = True

    def write() -> None:
        if seen["read_only"]:
            return
        full = Path("/dev/full") if context.injected("full-volume") else part
        seconds = _write(full, context.rank, mib)
        part.rename(mine)  # a shard is whole
        seen["write_s"] = seconds
        if context.injected("damaged-file"):
            with mine.open("r+b") as file:
                file.seek(BLOCK // 2)
                file.write(b"damaged")

    def read() -> None:
        # other nodes' shards are missing on a volume of this node alone
        for rank in ((context.rank + 1) % context.size, context.rank):
            if (shard := folder / f"shard-{rank}").exists():
                _read(seen, shard, _blocks(rank, mib))
                return
        some = itertools.islice(path.rglob("*"), MOST_FILES) if seen["read_only"] else ()
        files = sorted(file for file in some if file.is_file() and file.stat().st_size >= BLOCK)
        for file in files[context.rank % max(1, len(files)) :: context.size]:
            blocks = min(mib - len(seen["latencies_s"]), file.stat().st_size // BLOCK)
            _read(seen, file, itertools.repeat(None, blocks))

    try:
        for work in (begin, write, read):  # all at the same time
            if not seen["problem"]:  # the other ranks wait for this one
                try:
                    work()
                except OSError as error:
                    seen["problem"] = _problem(error, name, path)
            context.barrier(f"storage/{name}/{work.__name__}")
    finally:
        with contextlib.suppress(OSError):  # not empty: the last rank removes it
            for file in (part, mine):
                file.unlink(missing_ok=True)
            folder.rmdir()
    return seen


def _problem(error: OSError, name: str, path: Path) -> tuple[str, str, str]:
    """Verdict, kind and words. The scratch folder is no volume of a job."""
    if error.errno not in NO_SPACE:
        return FAIL, "volume", f"cannot be used: {error.strerror}"
    free_mb = shutil.disk_usage(path).free / 1e6
    words = f"full while the checkpoint was written ({error.strerror}; {free_mb:.0f} MB free)"
    return INCOMPLETE if name == SCRATCH else FAIL, "volume-full", words


def _blocks(rank: int, mib: int) -> Iterator[bytes]:
    """The content of a shard: each block starts with its position, the rest cannot be
    compressed.
    """
    body = random.Random(rank).randbytes(BLOCK - 16)
    return (rank.to_bytes(8, "big") + index.to_bytes(8, "big") + body for index in range(mib))


def _write(path: Path, rank: int, mib: int) -> float:
    """Seconds until fsync returns."""
    blocks, start = _blocks(rank, mib), time.perf_counter()
    with path.open("wb") as file:
        file.writelines(blocks)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def _read(seen: dict, path: Path, blocks: Iterator[bytes | None]) -> None:
    """Read blocks of a file without the cache, and compare those that are known."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for number, right in enumerate(blocks):
            start = time.perf_counter()
            block = file.read(BLOCK)
            seen["latencies_s"].append(time.perf_counter() - start)
            if block != (right or block):
                pairs = enumerate(zip(block, right, strict=False))
                first = next((index for index, (a, b) in pairs if a != b), len(block))
                words = f"{path.name} is not what was written from byte {number * BLOCK + first} on"
                seen["problem"] = FAIL, "volume-bytes", words
                return


def evidence(results: list[dict], plan: Plan, nodes: int) -> Evidence:
    mib = mib_of(plan, nodes)
    found = Evidence(facts={"ranks": len(results), "mib_of_each_rank": mib})
    for name in results[0]["volumes"]:
        seen = [result["volumes"][name] for result in results]
        path, read_only = seen[0]["path"], all(each["read_only"] for each in seen)
        faults = [rank for rank, each in enumerate(seen) if each["problem"]]
        for rank in faults[:NAMED]:
            verdict, kind, words = seen[rank]["problem"]
            words = f"{results[rank]['label']}: {name} ({path}): {words}"
            found.add(verdict, kind, words, f"rank {rank}", volume=name)
        found.facts[name] = {"path": path, "read_only": read_only}
        if all(each["write_s"] for each in seen):
            rate = len(seen) * mib * BLOCK / max(each["write_s"] for each in seen) / 1e6
            found.add_number("storage_write", rate, "MB/s", name)
        latencies = sorted(latency for each in seen for latency in each["latencies_s"])
        if latencies:
            slowest_s = max(sum(each["latencies_s"]) for each in seen)
            rate = len(latencies) * BLOCK / slowest_s / 1e6
            p99 = latencies[99 * (len(latencies) - 1) // 100]
            found.add_number("storage_read", rate, "MB/s", name)
            found.add_number("storage_read_p99", p99 * 1e3, "ms", name)
        elif not faults:
            words = f"{name} ({path}): cannot be written and holds no file of 1 MiB to read"
            found.incomplete("volume", words, volume=name)
    if all(each["read_only"] for result in results for each in result["volumes"].values()):
        found.inapplicable["storage_write"] = "all volumes are read-only"
    if not plan.volumes:
        found.facts["note"] = "no volume is mounted: the scratch folder was tested"
    return found
