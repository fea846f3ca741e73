"""A node of 8 GPUs as numbers, and the report that the real checks would write of it, with every
consequence.

A fault is one change of the hardware. What follows from it is computed: ranks that train together
wait for the slowest, collectives for the slowest link. Texts and verdicts are those of the checks,
which judge the numbers here.
"""

import dataclasses
import hashlib
import json
import random
from pathlib import Path

from gpuworker.accept import fabric, peer_comparison, registry
from gpuworker.accept.check_spec import Plan
from gpuworker.accept.checks import storage, stragglers
from gpuworker.accept.checks.collectives import sweep
from gpuworker.accept.checks.correctness import ddp_reference
from gpuworker.accept.checks.training import training_steps
from gpuworker.accept.environment_problems import NOT_READABLE
from gpuworker.judgement.report import Evidence, Measurement, Problem, Requested, to_json
from gpuworker.judgement.xids import judged
from gpuworker.runtime.gpu_inventory import Gpu
from tests.helpers.fleet_reports import GROUP, H100, complete_report

GPUS = 8
REQUESTED = Requested("cuda", GPUS, "quick")
PLAN = Plan("cuda", GPUS, "quick")
DEVICES = [f"cuda:{index}" for index in range(GPUS)]
PAIRS = [(a, b) for a in range(GPUS) for b in range(GPUS) if a != b]
HEALTHY = {
    "gemm_fp32": 48.0, "gemm_tf32": 400.0, "gemm_bf16": 720.0, "gemm_fp16": 730.0, "gemm_fp8": 1300.0,
    "memory_copy": 2800.0, "memory_triad": 2900.0, "link_h2d": 55.0, "link_d2h": 55.0,
    "link_peer": 380.0,
}  # fmt: skip
FLOP_PER_TOKEN = 3.0e9


class Hardware:
    """Shares of what healthy hardware reaches, by GPU or by pair of GPUs, and what is wrong."""

    def __init__(self, node: str, seed: int = 0):
        self.node, self.seed = node, seed
        self.compute, self.memory, self.host_link = ([1.0] * GPUS for _ in range(3))
        self.links = dict.fromkeys(PAIRS, 1.0)
        self.cpus = 1.0  # of one NUMA node
        self.training = 1.0  # what no other check measures
        self.exchange = 1.0  # of collectives, although each link is right
        self.kept = [1.0] * GPUS  # time that is not lost to single calls
        self.late_s, self.own_error = ([0.0] * GPUS for _ in range(2))
        self.telemetry: list[dict] = [{"readings": 40} for _ in range(GPUS)]
        self.under_load: list[dict] = [{} for _ in range(GPUS)]  # facts of the links
        self.failures: dict[str, list[Problem]] = {}  # of a check
        self.wrong: dict[int, tuple] = {}  # rank -> wrong elements, senders
        self.diverged, self.odd_bits, self.far = set(), set(), set()  # ranks, GPUs
        self.volume = ""  # its error
        self.seen = GPUS  # GPUs that torch sees
        self.xids: list[dict] = []
        self.broken: dict[str, Problem] = {}  # check -> why it has no evidence
        self.added: list[Evidence] = []
        self.gpus = [
            Gpu(
                device, f"GPU-{node}-{index}", H100, f"0000:{index}b:00.0", "570.86", f"165{index}-{node}",
                "96.00", "G520", ecc=True, ecc_uncorrected=0, remap_failed=False, pages_pending=False, clock_reasons=1,
                sm_mhz_max=1980, temperature_c=30, pcie_replays=0, pcie_gen_max=5, pcie_width_max=16,
                power_limit_w=700.0, power_default_w=700.0, nvlinks_up=18, nvlinks_down=0, nvlink_errors=0,
            )
            for index, device in enumerate(DEVICES)
        ]  # fmt: skip
        self.ports = [
            fabric.Port(f"mlx5_{i}/1", True, rate_gbps=400.0, kind="MT4129") for i in range(GPUS)
        ]
        self.pci_gpus = [gpu.bus_id for gpu in self.gpus]

    def change(self, index: int, **fields: object):
        self.gpus[index] = dataclasses.replace(self.gpus[index], **fields)

    def report(self) -> dict:
        """The report that accept-node would write."""
        self.noise = random.Random(self.seed)
        report = complete_report(self.node, REQUESTED)
        report["facts"]["gpu_models"] = [H100] * self.seen
        checks = list(self.added)
        for name in registry.node_checks():
            if self.seen != GPUS and name != "environment":
                continue
            if name in self.broken:
                evidence = Evidence(problems=[self.broken[name]])
            else:
                evidence = getattr(self, f"_{name}")()
                evidence.problems += self.failures.get(name, [])
            evidence.name, evidence.duration_s = name, 1.0
            checks.append(evidence)
        report["checks"] = [dataclasses.asdict(evidence) for evidence in checks]
        return json.loads(to_json(report, None))

    def jitter(self) -> float:
        return 1 + self.noise.uniform(-0.01, 0.01)

    def _speeds(self, names: tuple[str, ...], shares: list[float]) -> Evidence:
        """Numbers of each GPU, which are compared."""
        found = Evidence()
        for name in names:
            rates = {
                device: HEALTHY[name] * share * self.jitter()
                for device, share in zip(DEVICES, shares, strict=True)
            }
            unit = "TFLOP/s" if name.startswith("gemm") else "GB/s"
            found.measurements += [
                Measurement(name, rate, unit, device) for device, rate in rates.items()
            ]
        return found

    def _environment(self) -> Evidence:
        near = {d: fabric.FAR if i in self.far else fabric.SWITCH for i, d in enumerate(DEVICES)}
        return Evidence(
            facts={
                "cuda_error": "", "cuda_error_kind": "", "gpus_expected": GPUS, "gpus_seen": self.seen,
                "pci_gpus": self.pci_gpus,
                **fabric.facts(self.ports), "gpus": [dataclasses.asdict(gpu) for gpu in self.gpus],
                "nearest_adapters": near, "mps_share": "", "shm_bytes": 64 << 30,
                "clock_synchronised": True, "xids": self.xids or NOT_READABLE,
            }
        )  # fmt: skip

    def _compute(self) -> Evidence:
        found = self._speeds(
            tuple(name for name in HEALTHY if name.startswith("gemm")), self.compute
        )
        found.facts |= {
            "telemetry": dict(zip(DEVICES, self.telemetry, strict=True)),
            "telemetry_problem": "",
        }
        shares = dict(zip(DEVICES, self.kept, strict=True))
        found.facts["kept"] = {"gemm_bf16": shares}
        return found

    def _host(self) -> Evidence:
        found = Evidence()
        memory, cores = (
            {"numa0": 300 * self.jitter(), "numa1": 300 * self.jitter()},
            {"numa0 CPU 0": 4.0, "numa1 CPU 60": 4.0},
        )
        cores |= {f"numa{i % 2} CPU {i}": 4.0 * self.jitter() for i in range(1, 8)}
        cores["numa1 CPU 60"] *= self.cpus
        peer_comparison.compare(found, "host_memory", memory)
        peer_comparison.compare(found, "host_compute", cores)
        numbers = (("host_memory", memory), ("host_compute", cores))
        found.measurements = [
            Measurement(name, min(rates.values()), "GB/s") for name, rates in numbers
        ]
        return found

    def _memory(self) -> Evidence:
        found = self._speeds(("memory_copy", "memory_triad"), self.memory)
        found.measurements += [
            Measurement("memory_tested", 76.0, "GiB", device) for device in DEVICES
        ]
        found.facts |= {
            "memory_gib": dict.fromkeys(DEVICES, 79.6),
            "models": dict.fromkeys(DEVICES, H100),
        }
        return found

    def _links(self) -> Evidence:
        found = self._speeds(("link_h2d", "link_d2h"), self.host_link)
        rates = {
            f"cuda:{a}→cuda:{b}": HEALTHY["link_peer"] * share * self.jitter()
            for (a, b), share in self.links.items()
        }
        found.measurements += [
            Measurement("link_peer", rate, "GB/s", pair) for pair, rate in rates.items()
        ]
        found.ceilings = dict.fromkeys(("link_h2d", "link_d2h"), (63.0, "PCIe generation 5 ×16"))
        found.ceilings["link_peer"] = 450.0, "NVLink"
        found.facts["links"] = {
            gpu.device: {
                "name": H100, "pcie_gen_under_load": 5, "pcie_gen_max": gpu.pcie_gen_max,
                "pcie_width_under_load": gpu.pcie_width_max, "pcie_width_max": gpu.pcie_width_max,
                "nvlinks_up": gpu.nvlinks_up, "nvlinks_down": gpu.nvlinks_down, **self.under_load[index],
            }
            for index, gpu in enumerate(self.gpus)
        }  # fmt: skip
        return found

    def _repeatability(self) -> Evidence:
        found = Evidence(facts={"hash_group": dict.fromkeys(DEVICES, GROUP)})
        found.measurements = [
            Measurement("repeats", 100.0, "repeats", device) for device in DEVICES
        ]
        names = registry.node_checks()["repeatability"].fingerprints
        usual = {
            device: {
                name: hashlib.sha256(
                    f"{name}{device * (index in self.odd_bits)}".encode()
                ).hexdigest()
                for name in names
            }
            for index, device in enumerate(DEVICES)
        }
        found.hashes = {
            f"{name} {device}": value
            for device, own in usual.items()
            for name, value in own.items()
        }
        return found

    def _ranks(self) -> list[dict]:
        labels = [
            f"rank {rank} (node {self.node}, {device})" for rank, device in enumerate(DEVICES)
        ]
        return [
            {"label": label, "device": d, "model": H100}
            for label, d in zip(labels, DEVICES, strict=True)
        ]

    def _training(self) -> Evidence:
        """DDP ends a step when its last rank ends it."""
        per_rank = [
            0.1 / (c * k * min(1, 2 * m))
            for c, k, m in zip(self.compute, self.kept, self.memory, strict=True)
        ]
        alone = [seconds / (self.training * min(1, 2 * self.cpus)) for seconds in per_rank]
        together = (
            max(alone) + max(self.late_s) + 0.003 / (self.exchange * min(self.links.values()))
        )
        results = [
            rank | {
                "losses": [9.0, 2.0], "tokens": 8192,
                "flop_per_token": FLOP_PER_TOKEN, "steps_s": [together] * 9,
            }
            for rank in self._ranks()
        ]  # fmt: skip
        return training_steps.evidence(results, PLAN, 1)

    def _collectives(self) -> Evidence:
        curves = {}
        for name in sweep.NAMES:
            seconds = (
                sweep.factor(name, GPUS)
                * 2**30
                / (355e9 * self.exchange * min(self.links.values()) * self.jitter())
            )
            curves[name] = {str(2**30): [seconds] * 5}
        results = []
        for index, rank in enumerate(self._ranks()):
            wrong, senders = self.wrong.get(index, ([], []))
            results.append(
                rank | {"curves": curves, "unsupported": {}, "wrong": wrong, "senders": senders}
            )
        return sweep.evidence(results, PLAN, 1)

    def _correctness(self) -> Evidence:
        averaged = max(self.own_error) / GPUS
        results = [
            rank | {
                "own_error": self.own_error[index], "reduced_error": averaged, "loaded": f"{index in self.diverged}",
                "trained": f"{index in self.diverged}", "straight": "", "resumed": "",
            }
            for index, rank in enumerate(self._ranks())
        ]  # fmt: skip
        return ddp_reference.evidence(results, PLAN, 1)

    def _stragglers(self) -> Evidence:
        compute = [
            0.2 / (c * k) * self.jitter() for c, k in zip(self.compute, self.kept, strict=True)
        ]
        arrival = [seconds + late for seconds, late in zip(compute, self.late_s, strict=True)]
        waits = [max(arrival) - seconds for seconds in arrival]
        ranks = zip(self._ranks(), compute, waits, strict=True)
        results = [
            r | {"device": "cuda", "compute_s": [c] * 8, "wait_s": [wait] * 8}
            for r, c, wait in ranks
        ]
        return stragglers.evidence(results, PLAN, 1)

    def _storage(self) -> Evidence:
        problem = ("FAIL", "volume-full", self.volume) if self.volume else None
        seen = {
            "path": "/out", "read_only": False, "problem": problem,
            "write_s": 0.0 if problem else 0.01, "latencies_s": [] if problem else [0.001] * 9,
        }  # fmt: skip
        plan = dataclasses.replace(PLAN, volumes={"out": Path("/out")})
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
