"""Commands of the gpu-cluster-acceptance image with their original names, flags, tags and report
files.

gpu_tests.py: matrix products on every GPU of this node are correct and fast, and a small network
learns. gpu_tests_result.json: {env, compute, training, verdict, measurements} or {env, failures,
…}.

ddp_tests.py, under torchrun: see ddp_tests.py beside this file.

run_all_tests.py: gpu_tests, then ddp_tests on all GPUs of this node, without and with training;
every part runs, also after failures. summary.json: {env, gpu_tests, ddp_tests, ddp_train}, each
{returncode, stdout, stderr}.

Each also takes --device cpu for a rehearsal. Exit code 3: nothing was tested, and a report says
why. tests/worker/test_legacy_cli.py lists the corrected faults of the originals.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from gpuworker.accept.publish import write_json
from gpuworker.judgement.judge import judge
from gpuworker.judgement.reading import report_of
from gpuworker.judgement.report import INCOMPLETE, PASS, WARN, parsed
from gpuworker.runtime import gpu_inventory
from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.log import log

NOT_TESTED = 3
SUMMARY = "summary.json"
CHECKS = ("environment", "compute", "training")
PARTS = {
    "gpu_tests": ["gpu_tests.py"],
    "ddp_tests": ["ddp_tests.py"],
    "ddp_train": ["ddp_tests.py", "--train-smoke"],
}


def begin(name: str, skipped: str = "") -> tuple[argparse.Namespace, dict]:
    """The arguments that all commands have, and the `env` of the original reports. Ends with
    NOT_TESTED if no GPU is present; the originals reported success.
    """
    import torch

    escape_output()
    parser = argparse.ArgumentParser(prog=f"{name}.py")
    parser.add_argument("--quick", action="store_true", help="a minute instead of ten")
    parser.add_argument("--verbose", action="store_true", help="accepted; the log is complete")
    parser.add_argument("--report-dir", default="reports", type=Path)
    parser.add_argument("--report-name")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    args, others = parser.parse_known_args()
    if others and name != "ddp_tests":
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    gpus = enumerate(gpu_inventory.inventory()[1])
    env = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda_available": torch.cuda.is_available(),
        "cuda_device_count": torch.cuda.device_count(),
        "nvidia_smi": "\n".join(f"GPU {i}: {gpu.name} (UUID: {gpu.uuid})" for i, gpu in gpus)
        or None,
    }
    if args.device == "cuda" and not env["cuda_device_count"]:
        if os.environ.get("RANK", "0") == "0":
            path = args.report_dir / (skipped or args.report_name or SUMMARY)
            write_json(path, {"skipped": True, "reason": "no_gpu", "env": env})
            words = "torch sees no GPU: nothing was tested"
            log("RESULT", verdict=INCOMPLETE, reason=words, report=path)
        sys.exit(NOT_TESTED)
    return args, env


def gpus_expected(env: dict) -> int:
    """GPUS_PER_NODE of the manifest, else the number of present GPUs."""
    return int(os.environ.get("GPUS_PER_NODE") or env["cuda_device_count"])


def gpu_tests() -> None:
    """Exit code 0: passed, 2: failed, 3: not tested."""
    args, env = begin("gpu_tests", "gpu_tests_skipped.json")
    command = [sys.executable, "-m", "gpuworker.accept.accept_node", f"--device={args.device}"]
    command += [f"--level={'quick' if args.quick else 'full'}"]
    command += [f"--check={name}" for name in CHECKS]
    command += [f"--gpus={gpus_expected(env)}"] * (args.device == "cuda")
    with tempfile.TemporaryDirectory() as scratch:
        code = subprocess.run([*command, f"--report-dir={scratch}"]).returncode
        path = Path(scratch) / "report.json"
        judged = judge(report_of(parsed(path.read_text()))) if path.exists() else None
    checks = judged.checks if judged else []
    failures = [f"{check.name or 'report'}: {check.reason}" for check in checks
                if check.verdict not in (PASS, WARN)]  # fmt: skip
    ran = {check.name for check in checks}
    failures += [f"{name}: did not run" for name in CHECKS if name not in ran]
    verdict = judged.verdict if judged else INCOMPLETE
    result = {"failures": failures} if failures else {"compute": True, "training": True}
    result["measurements"] = [
        dataclasses.asdict(each) for check in checks for each in check.numbers
    ]
    path = args.report_dir / (args.report_name or "gpu_tests_result.json")
    write_json(path, {"env": env, "verdict": verdict, **result})
    sys.exit(2 if code == 1 else NOT_TESTED if failures or code else 0)


def ddp_tests() -> None:
    """Exit code 0: passed, 3: failed or not tested."""
    training = "training" if "--train-smoke" in sys.argv else "tests"
    args, _ = begin("ddp_tests", f"ddp_{training}_skipped.json")
    from gpuworker.accept import ddp_tests

    sys.argv += ["--device", args.device]
    ddp_tests.main()


def run_all_tests() -> None:
    """Exit code 0: all passed; else that of the last part that failed."""
    args, env = begin("run_all_tests")
    path = args.report_dir / (args.report_name or SUMMARY)
    log("ENV", **{key: value for key, value in env.items() if value is not None})
    processes = gpus_expected(env) if args.device == "cuda" else 2
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    options = ["--device", args.device, "--report-dir", args.report_dir, *["--quick"] * args.quick]
    results = {}
    for name, (script, *more) in PARTS.items():
        launcher = torchrun if script == "ddp_tests.py" else []
        results[name] = run([*launcher, Path(sys.argv[0]).with_name(script), *more, *options])
        write_json(path, {"env": env, **dict.fromkeys(PARTS), **results})
    codes = {name: result["returncode"] for name, result in results.items()}
    log("SUMMARY", text="; ".join(f"{name} rc={code}" for name, code in codes.items()))
    failed = [name for name in codes if codes[name]]
    verdict = {"verdict": "FAIL", "failed": ", ".join(failed)} if failed else {"verdict": PASS}
    log("RESULT", **verdict, report=path)
    sys.exit(codes[failed[-1]] if failed else 0)


def run(arguments: list[str | Path]) -> dict:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, encoding="utf-8", errors="replace"
    )
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return {"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
