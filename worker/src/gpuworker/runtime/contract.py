"""Contract between the charts, the worker's programs and the users' programs: one table for each
kind of name.

Environment variables, ports, exit codes, log tags, reserved paths and limits that more than one
part needs are defined here and nowhere else. `make generate` writes from these tables what Helm
templates, JSON schemas, shell scripts, jobgen and docs/environment.md need; `make verify` fails
when one of those files differs. Standard library only.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

VERSION = "0.1.0"  # of the charts, the worker and jobgen


class ExitCode(enum.IntEnum):
    """Exit codes of `ddp-launch` and of a group's ranks. A code from 64 to 72 is a fault of the
    launch or of a node, never an error of the user's program; 70 is a hang."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NAME_RESOLUTION = 64
    PORT = 65
    NODE_MISSING = 66
    NODES_DIFFER = 67
    INTERFACE = 68
    RENDEZVOUS = 69
    HANG = 70
    NODE_LOST = 71
    NODE_UNFIT = 72
    SAVED = 75
    STOPPED = 143


EXIT_CODE_MEANINGS = {
    ExitCode.DONE: "the program ended with 0 on every node",
    ExitCode.FAILED: "the program failed",
    ExitCode.USAGE: "a flag or a variable is wrong; a restart does not help",
    ExitCode.NAME_RESOLUTION: "the name of node 0 does not resolve, or resolves to another address",
    ExitCode.PORT: "node 0 does not answer on its port, or another program does",
    ExitCode.NODE_MISSING: "a node did not join in time",
    ExitCode.NODES_DIFFER: "nodes differ, or a node lacks what was requested",
    ExitCode.INTERFACE: "no network interface leads to node 0",
    ExitCode.RENDEZVOUS: "ranks waited for one that was still importing its modules",
    ExitCode.HANG: "the program hangs: a collective, its progress or its end took too long",
    ExitCode.NODE_LOST: "a node was lost during the run",
    ExitCode.NODE_UNFIT: "the test of a node before the start has failed",
    ExitCode.SAVED: "stopped after the program saved; start it again",
    ExitCode.STOPPED: "stopped before the program saved",
}


class Override(enum.Enum):
    """What happens when a user sets a variable of the contract in `env`."""

    REFUSED = "refused"  # only the pod or the chart's values can know it
    FOLLOWED = "followed"  # the user's value wins, and every variable that must agree takes it, too
    ALLOWED = "allowed"  # the user's value wins; nothing depends on it


@dataclass(frozen=True)
class Variable:
    """One environment variable of the user's program.

    `agrees_with`: the variable whose value this one has. `instead`: per chart, the path of the
    value to set instead, where ENV is the path of `env` and TASK that of the group's task.
    `charts`: those that set it. `accepts`: the values that a user may set, in words and as a
    regular expression of the whole value (syntax of Python and Go).
    """

    name: str
    meaning: str
    override: Override = Override.REFUSED
    agrees_with: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)
    charts: tuple[str, ...] = ("ddp-run", "job-group")
    accepts: tuple[str, str] = ("", "")


# 1024 to 65534, because the launchers use the next port.
PORT = (
    "102[4-9]|10[3-9][0-9]|1[1-9][0-9]{2}|[2-9][0-9]{3}|[1-5][0-9]{4}"
    "|6([0-4][0-9]{3}|5([0-4][0-9]{2}|5([0-2][0-9]|3[0-4])))"
)
PROCESSES = "[1-9][0-9]{0,2}|10[01][0-9]|102[0-4]"
CHARTS = ("gpu-accept", "ddp-run", "job-group")
_GROUPS = ("job-group",)
_NODES = {"gpu-accept": "nodes", "ddp-run": "nodes", "job-group": "TASK.numNodes"}
_GPUS = {
    "gpu-accept": "gpusPerNode",
    "ddp-run": "gpusPerNode",
    "job-group": "TASK.accelerator.count",
}
_RUN_ID = {"gpu-accept": "runId", "ddp-run": "runName", "job-group": "runId"}

VARIABLES = (
    Variable("NNODES", "number of nodes", instead=_NODES),
    Variable("NODE_RANK", "index of this pod, 0 to NNODES - 1"),
    Variable(
        "NPROC_PER_NODE",
        "processes per node",
        Override.FOLLOWED,
        accepts=("a whole number from 1 to 1024", PROCESSES),
    ),
    Variable(
        "MASTER_ADDR",
        "DNS name of node 0",
        Override.FOLLOWED,
        accepts=("a name or address", r"\S+"),
    ),
    Variable(
        "MASTER_PORT",
        "port of the rendezvous on node 0",
        Override.FOLLOWED,
        accepts=("a whole number from 1024 to 65534", PORT),
    ),
    Variable("PET_NNODES", "NNODES, as torchrun reads it", agrees_with="NNODES"),
    Variable("PET_NODE_RANK", "NODE_RANK, as torchrun reads it", agrees_with="NODE_RANK"),
    Variable(
        "PET_NPROC_PER_NODE", "NPROC_PER_NODE, as torchrun reads it", agrees_with="NPROC_PER_NODE"
    ),
    Variable("PET_MASTER_ADDR", "MASTER_ADDR, as torchrun reads it", agrees_with="MASTER_ADDR"),
    Variable("PET_MASTER_PORT", "MASTER_PORT, as torchrun reads it", agrees_with="MASTER_PORT"),
    Variable(
        "PET_RDZV_ID",
        "RUN_ID and ATTEMPT; only where the chart starts torchrun itself",
        charts=("ddp-run",),
    ),
    Variable("RUN_ID", "one id per run", instead=_RUN_ID),
    Variable("ATTEMPT", "number of the start: 0, then one more per restart"),
    Variable("POD_NAME", "name of the pod", charts=CHARTS),
    Variable("POD_IP", "address of the pod"),
    Variable("NODE_NAME", "name of the Kubernetes node", charts=CHARTS),
    Variable("NUM_NODES", "NNODES, as konduktor names it", agrees_with="NNODES"),
    Variable("NUM_GPUS_PER_NODE", "GPUs per node", instead=_GPUS),
    Variable("RANK", "NODE_RANK until torchrun sets it for each process", agrees_with="NODE_RANK"),
    Variable(
        "USER",
        "a user name for the numeric user id of the container",
        Override.ALLOWED,
        charts=CHARTS,
    ),
    Variable("LOGNAME", "the same as USER", Override.ALLOWED, agrees_with="USER", charts=CHARTS),
    Variable("HOME", "a writable folder", Override.ALLOWED, charts=CHARTS),
    Variable(
        "SKYPILOT_JOBGROUP_NAME", "name of the group", instead={"job-group": "name"}, charts=_GROUPS
    ),
    Variable("SKYPILOT_NUM_NODES", "nodes of the task", agrees_with="NNODES", charts=_GROUPS),
    Variable(
        "SKYPILOT_NODE_RANK",
        "index of the pod in its task",
        agrees_with="NODE_RANK",
        charts=_GROUPS,
    ),
    Variable("SKYPILOT_NODE_IPS", "addresses of the task's pods, one per line", charts=_GROUPS),
    Variable(
        "SKYPILOT_NUM_GPUS_PER_NODE",
        "GPUs per node",
        agrees_with="NUM_GPUS_PER_NODE",
        charts=_GROUPS,
    ),
    Variable("SKYPILOT_TASK_ID", "id of the task in this run", charts=_GROUPS),
)
# Set by torchrun for each process. A value set by hand would break the rendezvous.
TORCHRUN_VARIABLES = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
# Every variable that is internal to this project starts so. No user needs such a name.
INTERNAL_PREFIX = "GPU_CHARTS_"
KEY_FILE_VARIABLE = f"{INTERNAL_PREFIX}KEY_FILE"
USER_NAME = "worker"  # default of USER

RENDEZVOUS_PORT = 29500  # torchrun's store; also the default of MASTER_PORT
LAUNCHER_PORT_OFFSET = 1  # the launchers use the port after the rendezvous
GROUP_AGENT_PORT = 29499
REPORT_PORT = 8080  # a node's report, and the collector's page

NAME_LIMIT = 63  # a DNS label, so also a pod's host name (RFC 1123)
# files embedded in one ConfigMap, which holds 1 MiB (1,048,576 bytes) with its keys
FILES_LIMIT_BYTES = 1_000_000
# The longest name that a chart derives from a group, a task and a rank: its Job, as JobSet names
# it. `workload: jobs` has the same limit although its names are two characters shorter, so that one
# can take the place of the other.
LONGEST_NAME = "%s-00000000-%s-%d-0"
KUEUE_POD_SETS = 18  # of a JobSet that Kueue takes; each rank is one
DELAY_LIMIT_SECONDS = 365 * 86400  # of an auxiliary task's end
VALUES_SCHEMA_VERSION = 1  # of the values that jobgen writes for the chart job-group
TERMINATION_MESSAGE_BYTES = 4096  # what Kubernetes keeps of a container's last message
KEY_FILE = "/run/gpu-charts/key"
# a podTemplate may replace it, as SkyPilot's pod_config often does
SHARED_MEMORY_MOUNT = "/dev/shm"
# Where no volume and no file of a group's task may be mounted.
RESERVED_MOUNTS = (
    *("/group", "/tmp", "/run/gpu-charts", SHARED_MEMORY_MOUNT),
    *("/dev", "/proc", "/sys"),
)


class Tag(str, enum.Enum):
    """First word of a log line that people and tools search for: `[TAG] node=… key=value …`."""

    __str__ = str.__str__  # the word itself also in f-strings, on every version of Python

    ENV = "ENV"
    DDP = "DDP"
    DEBUG = "DEBUG"
    STEP = "STEP"
    DONE = "DONE"
    FATAL = "FATAL"
    IDLE = "IDLE"
    GROUP = "GROUP"
    TRAIN = "TRAIN"
    EPOCH = "EPOCH"
    TRACK = "TRACK"
    RESULT = "RESULT"
    FLEET = "FLEET"
    WORLD = "WORLD"


def reserved_names(*, groups: bool) -> list[str]:
    """Names that a user's `env` must not contain, in the order of the table; `groups`: for the
    chart job-group.
    """
    refused = [
        each
        for each in VARIABLES
        if each.override is Override.REFUSED and (groups or each.charts != _GROUPS)
    ]
    return [*(each.name for each in refused), *TORCHRUN_VARIABLES]
