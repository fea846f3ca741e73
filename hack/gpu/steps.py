"""The steps of the GPU pack, in the order in which they matter if time ends early."""

from __future__ import annotations

from dataclasses import dataclass

from gpuworker.accept import fault_injection
from gpuworker.judgement import registry
from gpuworker.runtime.contract import ExitCode
from hack.gpu import judges
from hack.gpu.step import Step

ACCEPT, LAUNCH = ("-m", "gpuworker.accept.accept_node"), ("-m", "gpuworker.launch.launcher")
# Faults found by a time, or with all memory of the GPU: nothing else may run then. The others have
# exact evidence.
SLOW = ("slow-gpu", "stalling-gpu", "slow-memory", "slow-host-memory", "slow-cpu", "slow-host-link", "slow-link",
        "slow-rank", "late-rank")  # fmt: skip
ALONE = (*SLOW, "flipped-bit-memory")
LONG = ("slow-gpu", "stalling-gpu")  # every product takes longer
# Faults that compare a GPU with others of the node, or travel between two.
FAULTS_BETWEEN_GPUS = ("slow-link", "corrupt-link", "odd-device", "wrong-element", "diverged-parameter", "slow-rank",
                       "late-rank")  # fmt: skip
ENGINES = {"ddp": [], "ddp-compiled": ["torch_compile=true"], "fsdp": ["fsdp=full_shard"]}
TIMEOUT_S = 20  # of a collective, and of progress, where a step provokes one


@dataclass(frozen=True)
class Sizes:
    gpt: str
    gpt_shape: str
    llama: str
    gpt_run: tuple[int, int, int]  # tokens per sample, samples per step and rank, steps
    llama_run: tuple[int, int, int]
    matrix: int
    gemm_s: float


SIZES = {
    "cuda": Sizes("gpt", "12,768,12", "llama", (1024, 16, 60), (2048, 4, 30), 8192, 2.0),
    "cpu": Sizes("gpt-small", "2,64,4", "llama-small", (64, 2, 6), (64, 2, 6), 256, 0.05),
}


def steps(device: str, gpus: int) -> list[Step]:
    return [*first_part(device, gpus), *second_part(device, gpus), *rest(device, gpus)]


def first_part(device: str, gpus: int) -> list[Step]:
    """Seven minutes: what the figures and limits of the tests rest on."""
    one = ("compute", "memory")
    return [
        Step("machine", ("-m", "hack.gpu.machine", "{folder}"), judges.reported, 8),
        *(accept(f"quick-{number}", "quick", device, gpus, 50) for number in (1, 2, 3)),
        measure("steady", device, 110),
        measure("memory", device, 70),
        accept("beside-another", "quick", device, gpus, 60, one, judges.any_verdict, busy=True),
    ]


def second_part(device: str, gpus: int) -> list[Step]:
    """Seven minutes: the launcher with NCCL, the time of a prolog, the faults not found before, the
    full level.
    """
    ranks = max(1, gpus)
    late = [step for step in faults(device, gpus) if step.name in ("fault-slow-gpu",)]
    return [
        measure("xid", device, 20),
        measure("prolog", device, 12, "prolog-cold"),
        measure("prolog", device, 12, "prolog-warm"),
        *launches(device, ranks),
        *late,
        accept("full", "full", device, gpus, 180, ("compute", "memory", "repeatability")),
    ]


def rest(device: str, gpus: int) -> list[Step]:
    """For whoever has longer."""
    known = {step.name for step in second_part(device, gpus)}
    more = [*trainings(device, max(1, gpus)), *faults(device, gpus)]
    return [step for step in more if step.name not in known]


def measure(what: str, device: str, seconds: float, name: str = "") -> Step:
    sizes = ("--size", "8192") if device == "cuda" else ("--size", "256", "--seconds", "1")
    arguments = ("-m", "hack.gpu.measure", what, "--device", device, "--folder", "{folder}", *sizes)
    if name and device == "cuda":
        arguments = (*arguments, "--seconds", "8")
    return Step(name or f"measure-{what}", arguments, judges.reported, seconds)


def accept(
    name: str, level: str, device: str, gpus: int, seconds: float, checks: tuple[str, ...] = (),
    judge=judges.accepted, busy: bool = False,
) -> Step:  # fmt: skip
    """`busy`: beside a program that holds 30 GiB of the GPU and computes all the time."""
    options = ["--level", level, "--report-dir", "{folder}", "--run-id", name]
    for check in checks:
        options += ["--check", check]
    beside = ("-m", "hack.gpu.beside", device) if busy else ()
    return Step(f"accept-{name}", (*beside, *ACCEPT, *node(device, gpus), *options), judge, seconds)


def node(device: str, gpus: int) -> tuple[str, ...]:
    return ("--device", device, *(("--gpus", str(gpus)) if device == "cuda" else ()))


def faults(device: str, gpus: int) -> list[Step]:
    """One step per fault that can be injected into a check of one node, first those that run at the
    same time.
    """
    found = []
    for fault in fault_injection.known_faults(registry.node_checks()):
        if fault.id in FAULTS_BETWEEN_GPUS and device == "cuda" and gpus < 2:
            continue
        options = [
            "--inject",
            fault.id,
            "--check",
            fault.check or "environment",
            "--report-dir",
            "{folder}",
        ]
        if fault.id == "hung-check":
            options += ["--check-timeout", "5"]
        arguments = (*ACCEPT, *node(device, gpus), *options)
        judge = judges.found(
            fault.check, fault.kind, fault.id not in SLOW or device == "cpu" or gpus > 1
        )
        seconds = 45 if fault.id in LONG and device == "cuda" else 12
        found.append(Step(f"fault-{fault.id}", arguments, judge, seconds, alone=fault.id in ALONE))
    return sorted(found, key=lambda step: step.alone)


def launches(device: str, ranks: int) -> list[Step]:
    """ddp-launch with NCCL, or as a rehearsal with Gloo, on one process per GPU; and with Gloo on
    tensors of a GPU.
    """
    report = (
        "-m",
        "gpuworker.accept.ddp_tests",
        "--device",
        device,
        "--train-smoke",
        "--report-dir",
        "{folder}",
    )
    done, program = ("", ExitCode.DONE), ("-m", "hack.gpu.world_program", "--device", device)
    timeouts = (f"--collective-timeout={TIMEOUT_S}",)
    progress = (f"--progress-timeout={TIMEOUT_S}", "--progress-action=end")
    two = max(2, ranks) if device == "cpu" else 2
    table = [
        ("launch", ranks, (), report, *done),
        ("launch-crash", ranks, (), (*program, "--fault", "crash"), "program-failed", ExitCode.FAILED),
        ("launch-hang", 1, progress, (*program, "--fault", "hang"), "no-progress", ExitCode.HANG),
        ("launch-timeout", ranks, timeouts, (*program, "--fault", "spin"), "collective-timeout", ExitCode.HANG),
        ("launch-gloo", two, (), (*program, "--gloo"), *done),
        ("launch-gloo-timeout", two, timeouts, (*program, "--gloo", "--fault", "hang"), "collective-timeout",
         ExitCode.HANG),
    ]  # fmt: skip
    return [
        Step(name, (*LAUNCH, *LIMITS, *flags, "--", *what), judges.ended(int(code), cause),
             12 + (TIMEOUT_S + 5 if flags else 0), world(processes))
        for name, processes, flags, what, cause, code in table
        if device == "cuda" or "spin" not in what
    ]  # fmt: skip


LIMITS = ("--join-timeout=120", "--exit-timeout=60", "--grace-period=10")


def world(processes: int) -> dict[str, str]:
    """The variables of a run of one node; the runner adds a free MASTER_PORT."""
    return {"NNODES": "1", "NODE_RANK": "0", "NPROC_PER_NODE": str(processes), "MASTER_ADDR": "localhost",
            "RUN_ID": "gpu-pack", "ATTEMPT": "0"}  # fmt: skip


def trainings(device: str, ranks: int) -> list[Step]:
    sizes, found = SIZES[device], []
    for name, model, run in (
        ("gpt", sizes.gpt, sizes.gpt_run),
        ("llama", sizes.llama, sizes.llama_run),
    ):
        for engine, settings in ENGINES.items():
            if engine == "fsdp" and (device == "cpu" or ranks < 2):
                continue  # the library leaves it out there
            precision = ["bf16=true"] * (device == "cuda")
            what = training(model, run, [*settings, *precision])
            seconds = (25 if name == "gpt" else 35) + 25 * (engine == "ddp-compiled")
            found.append(
                Step(f"train-{name}-{engine}", what, judges.reported, seconds, world(ranks))
            )
    length, batch, count = sizes.gpt_run
    options = (
        "--length",
        str(length),
        "--batch",
        str(batch),
        "--steps",
        str(count),
        "--shape",
        sizes.gpt_shape,
    )
    peer = ("-m", "hack.gpu.peers", "gpt", "--device", device, "--folder", "{folder}", *options)
    gemm = ("-m", "hack.gpu.peers", "gemm", "--device", device, "--folder", "{folder}", "--size", str(sizes.matrix),
            "--seconds", str(sizes.gemm_s))  # fmt: skip
    return [
        Step("peer-gemm", gemm, judges.reported, 15),
        Step("peer-gpt", peer, judges.reported, 15),
        Step("peer-gpt-compiled", (*peer, "--compile"), judges.reported, 40),
        *found,
    ]


def training(model: str, run: tuple[int, int, int], settings: list[str]) -> tuple[str, ...]:
    words = ["--folder", "{folder}", "--model", model]
    words += [
        f"--{name}={value}" for name, value in zip(("length", "batch", "steps"), run, strict=True)
    ]
    words += [f"--set={setting}" for setting in settings]
    return (*LAUNCH, *LIMITS, "--", "-m", "hack.gpu.training", *words)
