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
RESERVED_MOUNTS = ("/group", "/tmp", "/run/gpu-charts", "/dev/shm", "/dev", "/proc", "/sys")
