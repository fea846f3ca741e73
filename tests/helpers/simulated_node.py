"""A node of up to 8 GPUs as numbers, and the report that the real checks would write of it, with every
consequence.

A fault is one change of the hardware. What follows from it is computed: ranks that train together
wait for the slowest, collectives for the slowest link. Texts and verdicts are those of the checks,
which judge the numbers here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.accept import fabric
from gpuworker.accept.checks import storage, stragglers
from gpuworker.accept.checks.collectives import sweep
from gpuworker.accept.checks.correctness import ddp_reference
from gpuworker.accept.checks.training import training_steps
from gpuworker.accept.environment_problems import NOT_READABLE
from gpuworker.judgement import peer_comparison, registry
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.report import Evidence, Measurement, Problem, Requested, to_json
from gpuworker.judgement.xids import judged
from gpuworker.runtime import gpu_specs
from gpuworker.runtime.gpu_inventory import Gpu
from tests.helpers.fleet_reports import GROUP, H100, complete_report

GPUS = 8
REQUESTED = Requested("cuda", GPUS, "quick")
DEVICES = [f"cuda:{index}" for index in range(GPUS)]
HEALTHY = {
    "gemm_fp32": 48.0, "gemm_tf32": 400.0, "gemm_bf16": 720.0, "gemm_fp16": 730.0, "gemm_fp8": 1300.0,
    "memory_copy": 2800.0, "memory_triad": 2900.0, "link_h2d": 55.0, "link_d2h": 55.0,
    "link_peer": 380.0,
}  # fmt: skip
FLOP_PER_TOKEN = 3.0e9
PCIE = {15.75: 3, 31.5: 4, 63: 5}  # generation by GB/s


def each(value: float) -> list[float]:
    return [value] * GPUS


def usual(name: str, model: str) -> float:
    """What a healthy GPU of the model reaches, by the table of figures; 0: it has no such format."""
    found = gpu_specs.figures(name, model)
    if not found:
        needed = name.startswith("memory") or name in ("gemm_fp32", "gemm_fp16")
        return HEALTHY[name] if needed or not gpu_specs.entry(model) else 0.0
    rate = found.get("sustained") or 0.92 * found.get("best", 0) or found.get("observed")
    return rate or 0.85 * found["specification"]


@dataclass
class Hardware:
    """Shares of what healthy hardware reaches, by GPU or by pair of GPUs, and what is wrong."""

    node: str
    seed: int = 0
    count: int = GPUS
    model: str = H100
    compute: list[float] = field(default_factory=lambda: each(1.0))
    memory: list[float] = field(default_factory=lambda: each(1.0))
    host_link: list[float] = field(default_factory=lambda: each(1.0))
    links: dict[tuple[int, int], float] = field(default_factory=dict)  # of each pair
    cpus: float = 1.0  # of one NUMA node
    training: float = 1.0  # what no other check measures
    exchange: float = 1.0  # of collectives, although each link is right
    kept: list[float] = field(
        default_factory=lambda: each(1.0)
    )  # time that is not lost to single calls
    late_s: list[float] = field(default_factory=lambda: each(0.0))
    gpus: list[Gpu] = field(default_factory=list)
    ports: list[fabric.Port] = field(default_factory=list)
    telemetry: list[dict] = field(default_factory=lambda: [{"readings": 40} for _ in range(GPUS)])
    under_load: list[dict] = field(
        default_factory=lambda: [{} for _ in range(GPUS)]
    )  # facts of the links
    failures: dict[str, list[Problem]] = field(default_factory=dict)  # of a check
    wrong: dict[int, tuple[list[str], list[int]]] = field(
        default_factory=dict
    )  # rank -> wrong elements, senders
    own_error: list[float] = field(default_factory=lambda: each(0.0))
    diverged: set[int] = field(default_factory=set)
    odd_bits: set[int] = field(default_factory=set)
    volume: str = ""  # its error
    far: set[int] = field(default_factory=set)
    seen: int = 0  # GPUs that torch sees
    pci_gpus: list[str] = field(default_factory=list)
    xids: list[dict] = field(default_factory=list)
    broken: dict[str, Problem] = field(default_factory=dict)  # check -> why it has no evidence
    added: list[Evidence] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.devices, self.seen = DEVICES[: self.count], self.count
        self.plan = Plan("cuda", self.count, "quick")
        one_way, self.pcie, links = (
            gpu_specs.figures(key, self.model).get("specification", usual)
            for key, usual in (("nvlink_oneway", 0), ("pcie_x16", 63.0), ("nvlinks", 0))
        )
        self.peer = one_way or self.pcie
        self.links = {(a, b): 1.0 for a in range(self.count) for b in range(self.count) if a != b}
        self.gpus = [
            Gpu(
                device, f"GPU-{self.node}-{index}", self.model, f"0000:{index}b:00.0", "570.86",
                f"165{index}-{self.node}",
                "96.00", "G520", ecc=True, ecc_uncorrected=0, remap_failed=False, pages_pending=False, clock_reasons=1,
                sm_mhz_max=1980, temperature_c=30, pcie_replays=0, pcie_gen_max=PCIE[self.pcie], pcie_width_max=16,
                power_limit_w=700.0, power_default_w=700.0, nvlinks_up=links, nvlinks_down=0, nvlink_errors=0,
            )
            for index, device in enumerate(self.devices)
        ]  # fmt: skip
        self.ports = [
            fabric.Port(f"mlx5_{i}/1", True, rate_gbps=400.0, kind="MT4129") for i in range(GPUS)
        ]
        self.pci_gpus = [gpu.bus_id for gpu in self.gpus]

    def change(self, index: int, **fields: object) -> None:
        self.gpus[index] = dataclasses.replace(self.gpus[index], **fields)

    def report(self) -> dict:
        """The report that accept-node would write."""
        noise = random.Random(f"{self.node} {self.seed}")
        report = complete_report(self.node, dataclasses.replace(REQUESTED, gpus=self.count))
        report["facts"]["gpu_models"] = [self.model] * self.seen
        checks = list(self.added)
        for name in registry.node_checks():
            if self.seen != self.count and name != "environment":
                continue
            if name in self.broken:
                evidence = Evidence(problems=[self.broken[name]])
            else:
                evidence = getattr(self, f"_{name}")(lambda: 1 + noise.uniform(-0.01, 0.01))
                evidence.problems += self.failures.get(name, [])
            evidence.name, evidence.duration_s = name, 1.0
            checks.append(evidence)
        report["checks"] = [dataclasses.asdict(evidence) for evidence in checks]
        return json.loads(to_json(report, None))

    def _speeds(self, names: tuple[str, ...], shares: list[float], jitter) -> Evidence:
        """Numbers of each GPU, which are compared."""
        found = Evidence()
        for name in names:
            rates = {
                device: self._usual(name) * share * jitter()
                for device, share in zip(self.devices, shares, strict=False)
            }
            unit = "TFLOP/s" if name.startswith("gemm") else "GB/s"
            found.measurements += [
                Measurement(name, rate, unit, device) for device, rate in rates.items()
            ]
        return found

    def _usual(self, name: str) -> float:
        if name.startswith("link_"):
            return HEALTHY[name] * (self.peer / 450 if name == "link_peer" else self.pcie / 63)
        return usual(name, self.model)

    def _environment(self, jitter) -> Evidence:
        near = {
            d: fabric.FAR if i in self.far else fabric.SWITCH for i, d in enumerate(self.devices)
        }
        return Evidence(
            facts={
                "cuda_error": "", "cuda_error_kind": "", "gpus_expected": self.count, "gpus_seen": self.seen,
                "pci_gpus": self.pci_gpus,
                **fabric.facts(self.ports), "gpus": [dataclasses.asdict(gpu) for gpu in self.gpus],
                "nearest_adapters": near, "mps_share": "", "shm_bytes": 64 << 30,
                "clock_synchronised": True, "xids": self.xids or NOT_READABLE,
            }
        )  # fmt: skip

    def _compute(self, jitter) -> Evidence:
        found = self._speeds(
            tuple(n for n in HEALTHY if n.startswith("gemm") and self._usual(n)),
            self.compute,
            jitter,
        )
        found.facts |= {
            "telemetry": dict(zip(self.devices, self.telemetry, strict=False)),
            "telemetry_problem": "",
        }
        measured = {number.name for number in found.measurements}
        shares = dict(zip(self.devices, self.kept, strict=False))
        found.facts["kept"] = dict.fromkeys(measured, shares)
        found.inapplicable = {
            n: "no such format on these GPUs"
            for n in HEALTHY
            if n.startswith("gemm") and n not in measured
        }
        return found

    def _host(self, jitter) -> Evidence:
        found = Evidence()
        memory, cores = (
            {"numa0": 300 * jitter(), "numa1": 300 * jitter()},
            {"numa0 CPU 0": 4.0, "numa1 CPU 60": 4.0},
        )
        cores |= {f"numa{i % 2} CPU {i}": 4.0 * jitter() for i in range(1, 8)}
        cores["numa1 CPU 60"] *= self.cpus
        peer_comparison.compare(found, "host_memory", memory)
        peer_comparison.compare(found, "host_compute", cores)
        numbers = (("host_memory", memory), ("host_compute", cores))
        found.measurements = [
            Measurement(name, min(rates.values()), "GB/s") for name, rates in numbers
        ]
        return found

    def _memory(self, jitter) -> Evidence:
        size = 0.95 * gpu_specs.figures("memory_gb", self.model).get("specification", 84)
        found = self._speeds(("memory_copy", "memory_triad"), self.memory, jitter)
        found.measurements += [
            Measurement("memory_tested", 0.95 * size, "GiB", device) for device in self.devices
        ]
        found.facts |= {
            "kept": dict.fromkeys(
                ("memory_copy", "memory_triad"), dict.fromkeys(self.devices, 1.0)
            ),
            "memory_gib": dict.fromkeys(self.devices, size),
            "models": dict.fromkeys(self.devices, self.model),
        }
        return found

    def _links(self, jitter) -> Evidence:
        found = self._speeds(("link_h2d", "link_d2h"), self.host_link, jitter)
        rates = {
            f"cuda:{a}→cuda:{b}": self._usual("link_peer") * share * jitter()
            for (a, b), share in self.links.items()
        }
        found.measurements += [
            Measurement("link_peer", rate, "GB/s", pair) for pair, rate in rates.items()
        ]
        found.ceilings = dict.fromkeys(("link_h2d", "link_d2h"), (self.pcie, "PCIe ×16"))
        if self.links:
            found.ceilings["link_peer"] = self.peer, "NVLink"
        else:
            found.inapplicable["link_peer"] = "one GPU has no peer"
        found.facts["links"] = {
            gpu.device: {
                "name": self.model, "pcie_gen_under_load": gpu.pcie_gen_max, "pcie_gen_max": gpu.pcie_gen_max,
                "pcie_width_under_load": gpu.pcie_width_max, "pcie_width_max": gpu.pcie_width_max,
                "nvlinks_up": gpu.nvlinks_up, "nvlinks_down": gpu.nvlinks_down, **self.under_load[index],
            }
            for index, gpu in enumerate(self.gpus)
        }  # fmt: skip
        return found

    def _repeatability(self, jitter) -> Evidence:
        found = Evidence(
            facts={"hash_group": dict.fromkeys(self.devices, GROUP.replace("H100", self.model))}
        )
        found.measurements = [
            Measurement("repeats", 100.0, "repeats", device) for device in self.devices
        ]
        names = registry.node_checks()["repeatability"].fingerprints
        usual = {
            device: {
                name: hashlib.sha256(
                    f"{name}{self.model}{device * (index in self.odd_bits)}".encode()
                ).hexdigest()
                for name in names
            }
            for index, device in enumerate(self.devices)
        }
        found.hashes = {
            f"{name} {device}": value
            for device, own in usual.items()
            for name, value in own.items()
        }
        return found

    def _ranks(self) -> list[dict]:
        labels = [
            f"rank {rank} (node {self.node}, {device})" for rank, device in enumerate(self.devices)
        ]
        return [
            {"label": label, "device": d, "model": self.model}
            for label, d in zip(labels, self.devices, strict=True)
        ]

    @property
    def _exchange(self) -> float:
        return self.exchange * min(self.links.values(), default=1.0)

    def _training(self, jitter) -> Evidence:
        """DDP ends a step when its last rank ends it."""
        pace = min(1.0, self._usual("gemm_fp16") / usual("gemm_fp16", H100))
        per_rank = [
            0.1 / pace / (c * k * min(1, 2 * m))
            for c, k, m in zip(self.compute, self.kept, self.memory, strict=True)
        ][: self.count]
        alone = [seconds / (self.training * min(1, 2 * self.cpus)) for seconds in per_rank]
        together = max(alone) + max(self.late_s) + 0.003 / self._exchange
        results = [
            rank | {
                "losses": [9.0, 2.0], "tokens": 8192,
                "flop_per_token": FLOP_PER_TOKEN, "steps_s": [together] * 9,
            }
            for rank in self._ranks()
        ]  # fmt: skip
        return training_steps.evidence(results, self.plan, 1)

    def _collectives(self, jitter) -> Evidence:
        curves = {}
        for name in sweep.NAMES:
            seconds = (
                sweep.factor(name, self.count)
                * 2**30
                / (self.peer * 0.79e9 * self._exchange * jitter())
            )
            curves[name] = {str(2**30): [seconds] * 5}
        results = []
        for index, rank in enumerate(self._ranks()):
            wrong, senders = self.wrong.get(index, ([], []))
            results.append(
                rank | {"curves": curves, "unsupported": {}, "wrong": wrong, "senders": senders}
            )
        return sweep.evidence(results, self.plan, 1)

    def _correctness(self, jitter) -> Evidence:
        averaged = max(self.own_error) / self.count
        results = [
            rank | {
                "own_error": self.own_error[index], "reduced_error": averaged, "loaded": f"{index in self.diverged}",
                "trained": f"{index in self.diverged}", "straight": "", "resumed": "",
            }
            for index, rank in enumerate(self._ranks())
        ]  # fmt: skip
        return ddp_reference.evidence(results, self.plan, 1)

    def _stragglers(self, jitter) -> Evidence:
        compute = [0.2 / (c * k) * jitter() for c, k in zip(self.compute, self.kept, strict=True)]
        arrival = [seconds + late for seconds, late in zip(compute, self.late_s, strict=True)]
        waits = [max(arrival) - seconds for seconds in arrival]
        ranks = zip(self._ranks(), compute, waits, strict=False)
        results = [
            r | {"device": "cuda", "compute_s": [c] * 8, "wait_s": [wait] * 8}
            for r, c, wait in ranks
        ]
        return stragglers.evidence(results, self.plan, 1)

    def _storage(self, jitter) -> Evidence:
        fine = {
            "path": "/out", "read_only": False, "problem": None, "write_s": 0.01, "latencies_s": [0.001] * 9,
            "read_bytes": 9 << 20,
        }  # fmt: skip
        full = {
            "problem": ("FAIL", "volume-full", self.volume),
            "write_s": 0.0,
            "latencies_s": [],
        }
        seen = fine | (full if self.volume else {})
        plan = dataclasses.replace(self.plan, volumes={"out": Path("/out")})
        return storage.evidence(
            [rank | {"volumes": {"out": seen}} for rank in self._ranks()], plan, 1
        )


def xids(*events: tuple[str, int]) -> Evidence:
    """What the watch of Xids adds to a report, for the UUID of a GPU and a code."""
    found = Evidence(name="xids")
    for uuid, code in events:
        kind, hardware = judged(code)
        (found.fail if hardware else found.warn)(
            kind, f"{uuid}: Xid {code} during the checks", uuid, code=code
        )
    return found
