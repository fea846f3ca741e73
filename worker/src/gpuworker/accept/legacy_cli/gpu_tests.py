"""gpu_tests.py: matrix products on every GPU of this node are correct and fast, and a small network learns.

Report gpu_tests_result.json: {env, compute, training, verdict, measurements} or {env, failures, …}; without a GPU
gpu_tests_skipped.json. Exit code 0: passed, 2: failed, 3: not tested.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

from gpuworker.accept.judge import judge
from gpuworker.accept.legacy_cli import (
    NOT_TESTED,
    environment,
    gpus_expected,
    parser,
    skip_without_gpu,
)
from gpuworker.judgement.reading import report_of
from gpuworker.judgement.report import INCOMPLETE, PASS, WARN, parsed, write_json
from gpuworker.runtime.command_line import escape_output, first_line

EXIT_CODES = {0: 0, 1: 2}
CHECKS = ("environment", "compute", "training")


def main() -> None:
    escape_output()
    args = parser("gpu_tests.py", first_line(__doc__), "gpu_tests_result.json").parse_args()
    env = environment()
    folder = Path(args.report_dir)
    skip_without_gpu(env, args.device, folder / "gpu_tests_skipped.json")
    command = [sys.executable, "-m", "gpuworker.accept.accept_node", "--device", args.device]
    command += [
        "--level",
        "quick" if args.quick else "full",
        *(f"--check={name}" for name in CHECKS),
    ]
    command += [f"--gpus={gpus_expected(env)}"] * (args.device == "cuda")
    with tempfile.TemporaryDirectory() as scratch:
        code = subprocess.run([*command, f"--report-dir={scratch}"]).returncode
        path = Path(scratch) / "report.json"
        judged = judge(report_of(parsed(path.read_text()))) if path.exists() else None
    checks = {check.name: check for check in judged.checks if check.name} if judged else {}
    passed = {name: name in checks and checks[name].verdict in (PASS, WARN) for name in CHECKS}
    failures = [
        f"{check.name}: {check.reason}" for check in checks.values() if not passed.get(check.name)
    ]
    failures += [f"{name}: did not run" for name in CHECKS if name not in checks]
    result = (
        {"failures": failures}
        if failures
        else {"compute": passed["compute"], "training": passed["training"]}
    )
    numbers = [dataclasses.asdict(number) for check in checks.values() for number in check.numbers]
    result |= {"verdict": judged.verdict if judged else INCOMPLETE, "measurements": numbers}
    write_json(folder / args.report_name, {"env": env, **result})
    sys.exit(EXIT_CODES.get(code, NOT_TESTED) or (NOT_TESTED if failures else 0))


if __name__ == "__main__":
    main()
