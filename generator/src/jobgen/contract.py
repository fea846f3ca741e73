"""Facts that jobgen shares with the chart job-group.

Generated from worker/src/gpuworker/runtime/contract.py by `make generate`.
"""

VERSION = "0.1.0"
VALUES_SCHEMA_VERSION = 1
NAME_LIMIT = 63
KUEUE_POD_SETS = 18
LONGEST_NAME = "%s-00000000-%s-%d-0"  # group, task, rank
FILES_LIMIT_BYTES = 1_000_000
DELAY_LIMIT_SECONDS = 31_536_000
# Variables that a task may set, in words and as a pattern.
ACCEPTS = {
    "NPROC_PER_NODE": (
        "a whole number from 1 to 1024",
        r"[1-9][0-9]{0,2}|10[01][0-9]|102[0-4]",
    ),
    "MASTER_ADDR": (
        "a name or address",
        r"\S+",
    ),
    "MASTER_PORT": (
        "a whole number from 1024 to 65534",
        r"102[4-9]|10[3-9][0-9]|1[1-9][0-9]{2}|[2-9][0-9]{3}|[1-5][0-9]{4}|6([0-4][0-9]{3}|5([0-4][0-9]{2}|5([0-2][0-9]|3[0-4])))",
    ),
}
SHARED_MEMORY_MOUNT = "/dev/shm"  # a podTemplate may replace it
RESERVED_MOUNTS = ("/group", "/tmp", "/run/gpu-charts", "/dev/shm", "/dev", "/proc", "/sys")
