"""run_all_tests.py: gpu_tests, then ddp_tests on all GPUs of this node, without and with training.

Report summary.json: {env, gpu_tests, ddp_tests, ddp_train}, each {returncode, stdout, stderr}.
Every part runs, also after failures. Exit code 0: all passed; else that of the last part that
failed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuworker.accept.legacy_cli import environment, gpus_expected, parser, skip_without_gpu
from gpuworker.judgement.report import write_json
from gpuworker.runtime.command_line import escape_output, first_line
from gpuworker.runtime.log import log

PARTS = {
    "gpu_tests": ["gpu_tests"],
    "ddp_tests": ["ddp_tests"],
    "ddp_train": ["ddp_tests", "--train-smoke"],
}


def main() -> None:
    escape_output()
    args = parser("run_all_tests.py", first_line(__doc__), "summary.json").parse_args()
    env = environment()
    path = Path(args.report_dir) / args.report_name
    log("ENV", **{key: value for key, value in env.items() if value is not None})
    skip_without_gpu(env, args.device, path)
    processes = gpus_expected(env) if args.device == "cuda" else 2
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    options = ["--device", args.device, "--report-dir", args.report_dir, *["--quick"] * args.quick]
    results = {}
    for name, (front, *more) in PARTS.items():
        launcher = torchrun if front == "ddp_tests" else []
        results[name] = run([*launcher, "-m", f"{__package__}.{front}", *more, *options])
        write_json(path, {"env": env, **dict.fromkeys(PARTS), **results})
    codes = {name: result["returncode"] for name, result in results.items()}
    log("SUMMARY", text="; ".join(f"{name} rc={code}" for name, code in codes.items()))
    failed = [name for name in codes if codes[name]]
    verdict = {"verdict": "FAIL", "failed": ", ".join(failed)} if failed else {"verdict": "PASS"}
    log("RESULT", **verdict, report=path)
    sys.exit(codes[failed[-1]] if failed else 0)


def run(arguments: list[str]) -> dict:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, encoding="utf-8", errors="replace"
    )
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return {"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


if __name__ == "__main__":
    main()
