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

from gpuworker.accept.check_spec import Measure, Plan, Spec
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
    seen: dict = {"path": str(path), "error": "", "read_only": False}
    seen |= {"write_s": 0.0, "read_bytes": 0, "latencies_s": []}
    folder = path / f".storage-test-{os.environ.get('RUN_ID', 'local')}"
    part, mine = (folder / f"{word}-{context.rank}" for word in ("part", "shard"))
    neighbour = (context.rank + 1) % context.size
    try:
        with _errors_into(seen, name):
            folder.mkdir(exist_ok=True)
        context.barrier(f"storage/{name}/begin")  # all write at the same time
        with _errors_into(seen, name):
            if folder.exists():
                full = Path("/dev/full") if context.injected("full-volume") else part
                seconds = _write(full, context.rank, mib)
                part.rename(mine)  # a shard is whole
                seen["write_s"] = seconds
                if context.injected("damaged-file"):
                    with mine.open("r+b") as file:
                        file.seek(BLOCK // 2)
                        file.write(b"damaged")
        context.barrier(f"storage/{name}/written")
        with _errors_into(seen, name):
            # other nodes' shards are missing on a volume of this node alone
            shard = folder / f"shard-{neighbour}"
            if shard.exists():
                _read(seen, shard, neighbour, mib, name)
            elif mine.exists():
                _read(seen, mine, context.rank, mib, name)
            elif seen["read_only"]:
                _read_existing_files(seen, context, path, mib)
        # no rank removes a shard that another rank still reads
        context.barrier(f"storage/{name}/read")
    finally:
        with contextlib.suppress(OSError):  # read-only, or not empty: the last rank removes it
            for file in (part, mine):
                file.unlink(missing_ok=True)
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
    blocks, start = _blocks(rank, mib), time.perf_counter()
    with path.open("wb") as file:
        file.writelines(blocks)
        file.flush()
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
    some = itertools.islice(path.rglob("*"), MOST_FILES)
    files = sorted(file for file in some if file.is_file() and file.stat().st_size >= BLOCK)
    for file in files[context.rank % max(1, len(files)) :: context.size]:
        for _ in _timed_blocks(seen, file, mib * BLOCK - seen["read_bytes"]):
            pass


def _timed_blocks(seen: dict, path: Path, most: int) -> Iterator[bytes]:
    """Blocks of a file, at most `most` bytes; adds their times and sizes to `seen`."""
    with path.open("rb") as file:
        # cached data would not test the storage
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(most // BLOCK):
            start = time.perf_counter()
            data = file.read(BLOCK)
            seen["latencies_s"].append(time.perf_counter() - start)
            seen["read_bytes"] += len(data)
            if not data:
                return
            yield data


def _describe(error: OSError, path: Path) -> str:
    if error.errno not in NO_SPACE:
        return f"cannot be written: {error.strerror}"
    free = shutil.disk_usage(path).free
    return f"full while the checkpoint was written ({error.strerror}; {free / 1e6:.0f} MB free)"


def evidence(results: list[dict], plan: Plan, nodes: int) -> Evidence:
    mib = mib_of(plan, nodes)
    found = Evidence(facts={"ranks": len(results), "mib_of_each_rank": mib})
    for name in results[0]["volumes"]:
        seen = [result["volumes"][name] for result in results]
        path, read_only = seen[0]["path"], all(each["read_only"] for each in seen)
        faults = [rank for rank, each in enumerate(seen) if each["error"]]
        for rank in faults[:NAMED]:
            verdict, words = FAIL, f"{results[rank]['label']}: {seen[rank]['error']}"
            if name == SCRATCH and seen[rank]["kind"] == "volume-full":
                # it is not a volume of a job: no fault of the node
                verdict, words = INCOMPLETE, f"{words}; the test needs {len(results) * mib} MiB"
            found.add(verdict, seen[rank]["kind"], words, f"rank {rank}", volume=name)
        found.facts[name] = {"path": path, "read_only": read_only}
        if all(each["write_s"] for each in seen):
            rate = len(seen) * mib * BLOCK / max(each["write_s"] for each in seen) / 1e6
            found.add_number("storage_write", rate, "MB/s", name)
        latencies = sorted(latency for each in seen for latency in each["latencies_s"])
        if latencies:
            slowest_s = max(sum(each["latencies_s"]) for each in seen)
            rate = sum(each["read_bytes"] for each in seen) / slowest_s / 1e6
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
