"""ddp_tests.py, under torchrun: all-reduce between all processes is correct; with --train-smoke, DDP learns.

Reports ddp_tests_result.json {world, iters, numel, time, ok, …} and ddp_training_result.json {world, epochs,
batch_size, steps, loss_start, loss_end, improved}; without a GPU ddp_tests_skipped.json. Only rank 0 writes.
Exit code 0: passed, 3: failed or not tested.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gpuworker.accept.legacy_cli import environment, parser, skip_without_gpu
from gpuworker.judgement.report import write_json
from gpuworker.runtime.command_line import escape_output, first_line

# per epoch, as in the original; the batch size is that of the small training
SAMPLES, BATCH = 4000, 256
LEAST_STEPS = 10  # the first losses are compared with the last


def main() -> None:
    escape_output()
    args = parse()
    training = "training" if args.train_smoke else "tests"
    folder, rank = Path(args.report_dir), int(os.environ.get("RANK", "0"))
    skip_without_gpu(
        environment(), args.device, folder / f"ddp_{training}_skipped.json" if rank == 0 else None
    )
    from gpuworker.accept import ddp_tests

    sys.argv = ["ddp_tests.py", "--device", args.device, "--report-dir", args.report_dir]
    sys.argv += [
        "--report-name",
        args.report_name,
        "--iters",
        str(args.iters),
        "--numel",
        str(args.numel),
    ]
    sys.argv += ["--train-smoke", "--steps", str(args.steps)] if args.train_smoke else []
    try:
        ddp_tests.main()
    finally:
        if rank == 0:
            amend(folder / args.report_name, {"time": "time_s"})
            amend(folder / "ddp_training_result.json", {}, epochs=args.epochs, batch_size=BATCH)


def parse():
    made = parser("ddp_tests.py", first_line(__doc__), "ddp_tests_result.json")
    made.add_argument("--iters", type=int, default=0, help="timed rounds; 0: twice the world size")
    made.add_argument(
        "--numel",
        type=int,
        default=0,
        help="float32 elements of the tensor; 0: chosen by the device",
    )
    made.add_argument(
        "--train-smoke", action="store_true", help="also train a small network with DDP"
    )
    made.add_argument("--epochs", type=int, default=2)
    made.add_argument("--batch-size", type=int, default=BATCH, help=f"only {BATCH} is possible")
    made.add_argument("--steps", type=int, default=0, help="training steps; 0: those of --epochs")
    args = made.parse_args()
    if args.batch_size != BATCH:
        made.error(
            f"--batch-size {args.batch_size}: the small training has batches of {BATCH}; leave the flag out"
        )
    args.steps = max(LEAST_STEPS, args.steps or args.epochs * -(-SAMPLES // BATCH))
    return args


def amend(path: Path, renamed: dict[str, str], **more: object) -> None:
    """Add the keys that readers of the original files need."""
    if path.exists():
        result = json.loads(path.read_text())
        write_json(path, result | {old: result[new] for old, new in renamed.items()} | more)


if __name__ == "__main__":
    main()
