"""Wording of verdicts, log lines and command lines of accept, compared with tests/golden/accept.txt."""

import dataclasses

import pytest

from gpuworker.accept import cli, publish, registry
from gpuworker.accept.check_spec import Evidence, Measure, Plan, Spec
from gpuworker.accept.checks.correctness import ddp_reference
from gpuworker.accept.checks.stragglers import rank_times
from gpuworker.accept.limits import Limits, problems
from gpuworker.accept.report import Check, Coverage, Measurement
from gpuworker.accept.verdict import judge
from tests.helpers import golden

H100 = "NVIDIA H100 80GB HBM3"
SPEC = Spec("COMPUTE", {"quick": 1}, {"gemm_bf16": Measure("TFLOP/s", "products", limit="gemm_bf16")})


def judged(value: float, **fields: object) -> Check:
    measurements = [Measurement("gemm_bf16", value, "TFLOP/s", "cuda:0")]
    return judge("compute", SPEC, Evidence(measurements, **fields), Limits((H100,)), Plan("cuda", 1))


def stragglers() -> Check:
    """Rank 3 computes slower, rank 1 arrives later."""
    ranks = [
        {"label": f"rank {rank} (node n{rank // 2}, cuda:{rank % 2})", "device": "cuda",
         "compute_s": [0.02 if rank == 3 else 0.01] * 3, "wait_s": [0.0 if rank == 1 else 0.1] * 3}
        for rank in range(6)
    ]  # fmt: skip
    check = registry.load()["stragglers"]
    return judge("stragglers", check.spec, rank_times.evidence(ranks), Limits(), Plan("cuda", 0))


def correctness() -> Check:
    good = {"own_error": 0.0, "reduced_error": 0.0, "trained": "a", "straight": "b", "loaded": "a", "resumed": "b"}
    ranks = [{"label": f"rank {rank} (node n{rank}, cuda:0)", **good} for rank in range(3)]
    ranks[2] |= {"trained": "c", "loaded": "c"}
    check = registry.load()["correctness"]
    return judge("correctness", check.spec, ddp_reference.evidence(ranks), Limits(), Plan("cuda", 0))


CHECKS = {
    "within its limits": lambda: judged(730),
    "below the warning limit": lambda: judged(640),
    "below the limit": lambda: judged(600),
    "above the hardware maximum": lambda: judged(1200),
    "not finite": lambda: judged(float("nan")),
    "every kind of evidence": lambda: judged(600, failures=["a fault"], warnings=["a warning"], not_measured=["a gap"]),
    "without evidence": lambda: judge("compute", Spec("ENV", {}), Evidence(), Limits(), Plan("cpu", 0)),
    "not applicable": lambda: judge(
        "compute", SPEC, Evidence(inapplicable={"gemm_bf16": "no bf16"}), Limits(), Plan("cpu", 0)
    ),
    "slow and late ranks": stragglers,
    "different parameters": correctness,
}


def test_wording_is_as_reviewed(monkeypatch, capsys, tmp_path, termination_log) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NODE_NAME", "node-a")
    monkeypatch.delenv("NODE_RANK", raising=False)
    for name, make in CHECKS.items():
        print(f"=== {name}")
        publish.log_check("COMPUTE", make())
    print("=== refused limits")
    print("\n".join(problems({"gemm_bf16": 1979, "memory_copy": 2.3, "busbw_node": -1}, (H100,)).values()))
    report = publish.new_report("1", "cpu", "quick", Coverage(2, left_out=["memory"]), injected="slow-gpu")
    report.checks = [judged(600), dataclasses.replace(judged(730), name="other")]
    monkeypatch.chdir(tmp_path)
    publish.publish(report, tmp_path.relative_to(tmp_path) / "report.json")
    text = "".join(line for line in capsys.readouterr().out.splitlines(True) if not line.startswith("[REPORT]"))
    text += f"=== termination message\n{termination_log.read_text()}\n"
    for arguments in (["--help"], ["--list"]):
        monkeypatch.setattr("sys.argv", ["accept-node", *arguments])
        with pytest.raises(SystemExit):
            cli.parse(registry.node_checks(), "description")
        text += f"=== accept-node {arguments[0]}\n{capsys.readouterr().out}"
    golden.check("accept.txt", text)
