"""Smoke test of training on many GPUs: a small classifier on made-up data, with DDP.

  torchrun --nproc-per-node=2 train.py --epochs 2 --batch 256 --samples 4096 --seed 42

It needs nothing but torch. With --output it saves checkpoints, and a later start with the same
--run-id goes on at the same sample, also with another number of ranks.
Exit codes: 0 it learned; 3 it did not; 75 SIGTERM, and a checkpoint is saved; 143 SIGTERM without
--output; 2 wrong flags, or a checkpoint of other data.
"""

import argparse
import atexit
import fcntl
import hashlib
import io
import math
import os
import shutil
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

ABOUT = "Smoke test of training on many GPUs: a small classifier on made-up data, with DDP."
USAGE, NOT_LEARNED, SAVED, STOPPED = 2, 3, 75, 143
KEEP = 2  # newest checkpoints, beside the best one


def parse(argv):
    parser = argparse.ArgumentParser(prog="train.py", description=ABOUT)
    sizes = {"epochs": 2, "batch": 256, "samples": 4096, "features": 128, "classes": 4}
    helps = {"batch": "samples per step of each rank"}
    for name, default in sizes.items():
        text = f"{helps.get(name, 'number of ' + name)} (default: {default})"
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate (default: 0.003)")
    parser.add_argument("--seed", type=int, default=42, help="of data and model (default: 42)")
    parser.add_argument("--output", help="mounted folder for checkpoints (default: none are saved)")
    run_id = os.environ.get("RUN_ID") or "run"
    parser.add_argument("--run-id", default=run_id, help=f"folder in --output (default: {run_id})")
    text = "steps between two checkpoints (default: only the end of each epoch)"
    parser.add_argument("--save-every", type=int, default=0, metavar="N", help=text)
    args = parser.parse_args(argv)
    for name, least in (dict.fromkeys(sizes, 1) | {"save_every": 0}).items():
        if getattr(args, name) < least:
            parser.error(
                f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least {least}"
            )
    if not 0 < args.lr < math.inf:
        parser.error(f"--lr {args.lr}: must be a finite number above 0")
    if not 0 <= args.seed < 2**32:
        parser.error(f"--seed {args.seed}: must be between 0 and {2**32 - 1}")
    check_folder(parser, args)
    return args


def check_folder(parser, args):
    if "://" in (args.output or ""):
        parser.error(f"--output {args.output}: must be a mounted folder; copy to a bucket later")
    if "/" in args.run_id or args.run_id in ("", ".", ".."):
        parser.error(f"--run-id {args.run_id!r}: must be the name of a folder")


def log(tag, rank, **facts):
    words = (f"[{tag}] rank={rank}", *(f"{name}={value}" for name, value in facts.items()))
    # one write, also unbuffered: lines stay whole
    print(" ".join(words) + "\n", end="", flush=True)


# Data and model


def make_points(args, count, seed):
    """Inputs (count, features) around one random center per class, and their classes (count)."""
    generator = torch.Generator().manual_seed(args.seed)
    centers = torch.randn(args.classes, args.features, generator=generator)
    generator.manual_seed(seed)
    labels = torch.randint(args.classes, (count,), generator=generator)
    return centers[labels] + torch.randn(count, args.features, generator=generator), labels


def order_of(args, epoch):
    """Depends on seed and epoch alone, so that any number of ranks goes on at the same sample."""
    generator = torch.Generator().manual_seed(args.seed + 1_000_003 * (epoch + 1))
    return torch.randperm(args.samples, generator=generator)


def make_model(args):
    torch.manual_seed(args.seed)  # the same weights on every rank
    return nn.Sequential(nn.Linear(args.features, 256), nn.ReLU(), nn.Linear(256, args.classes))


# Checkpoints: RUN/epoch-0001-step-00000010/rank-0/state.pt, RUN/epoch-0001/…, and the link RUN/best


def open_run(args):
    """The run's folder and its lock, which this process holds until it ends."""
    folder = Path(args.output, args.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    sync(folder.parent)
    lock = open(folder / ".lock", "w")  # noqa: SIM115 (it is held)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"[FATAL] {folder}: another process trains into it; use another --run-id")
    return folder, lock


def sync(path):
    """Put it on the disk, so that a crash of the node does not take it away."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save(folder, name, state, best):
    """Write and sync under another name, then rename: a checkpoint is never there in part.

    What a failed save leaves is deleted by the next one: the launcher sees that the disk is full.
    """
    buffer = io.BytesIO()  # writing by Python keeps the error number, such as of a full disk
    torch.save(state, buffer)
    temporary = folder / ".saving"
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / "rank-0").mkdir(parents=True)
    (temporary / "rank-0" / "state.pt").write_bytes(buffer.getbuffer())
    for path in (temporary / "rank-0" / "state.pt", temporary / "rank-0", temporary):
        sync(path)
    shutil.rmtree(folder / name, ignore_errors=True)
    temporary.rename(folder / name)
    sync(folder)
    keep_newest(folder, name if best else "")
    log("TRAIN", 0, saved=name, best=best)


def keep_newest(folder, best="", keep=KEEP):
    """Delete older checkpoints. The best one stays, and the link best leads to it."""
    if best:
        (folder / ".best").unlink(missing_ok=True)
        (folder / ".best").symlink_to(best)
        (folder / ".best").rename(folder / "best")
        sync(folder)
    for old in by_age(folder)[:-keep]:
        if old.name != os.path.basename(os.path.realpath(folder / "best")):
            shutil.rmtree(old, ignore_errors=True)


def by_age(folder):
    """epoch-0001-step-00000010, then epoch-0001, which is its end, then epoch-0002-step-…"""
    return sorted(folder.glob("epoch-*"), key=lambda path: (path.name[:10], path.name[10:] or "~"))


def newest(folder):
    """State and name of the newest checkpoint that can be read, or None twice."""
    for path in reversed(by_age(folder)):
        try:
            return torch.load(path / "rank-0" / "state.pt", weights_only=True), path.name
        except Exception as error:  # torch has no one class for a file that is damaged
            log("TRAIN", 0, unreadable=path.name, why=repr(error).splitlines()[0])
    return None, None


# Training


def total(device, *numbers):
    """Sums over all ranks."""
    tensor = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(tensor)
    return tensor.tolist()


def loss_of(model, inputs, labels, rows, rank, world, device):
    """Sum over this rank's share of the rows. A rank without any computes one for nothing."""
    mine = rows[rank::world]
    output = model(inputs[mine if len(mine) else rows[:1]].to(device))
    loss = functional.cross_entropy(output[: len(mine)], labels[mine].to(device), reduction="sum")
    return loss + 0.0 * output.sum()


def train(args, rank, world, device):
    """Returns the exit code."""
    stops = []
    signal.signal(signal.SIGTERM, lambda *_: stops.append(True))
    inputs, labels = make_points(args, args.samples, args.seed + 1)
    validation = make_points(args, max(1, args.samples // 8), args.seed + 2)
    model = make_model(args).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    identity = {name: getattr(args, name) for name in ("samples", "features", "classes", "seed")}
    at = {"epoch": 0, "sample": 0, "step": 0, "first": None, "best": math.inf}
    folder, _lock = open_run(args) if args.output and rank == 0 else (None, None)
    found = [newest(folder) if folder else (None, None)]
    dist.broadcast_object_list(found, device=device)  # only rank 0 reads and writes
    state, resumed = found[0]
    if state:
        if state["identity"] != identity:
            log("FATAL", rank, checkpoint=resumed, has=state["identity"], flags=identity)
            return USAGE
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        optimizer.param_groups[0]["lr"] = args.lr
        at = state["at"]
    # After its first backward pass DDP sorts its buckets, and with them the order of its sums. That
    # pass counts for nothing here, or a resumed run on four ranks would end with other bits.
    loss_of(parallel, inputs, labels, torch.arange(1), rank, world, device).backward()
    optimizer.zero_grad()
    facts = {"samples_per_step": args.batch * world, "resumed": resumed or "no"}
    log("TRAIN", rank, samples=args.samples, **facts, step=at["step"])

    def checkpoint(name, best=False):
        if folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(folder, name, state | {"at": at, "identity": identity}, best)
        dist.barrier()

    while at["epoch"] < args.epochs:
        order, number = order_of(args, at["epoch"]), at["epoch"] + 1
        while at["sample"] < args.samples:
            rows = order[at["sample"] : at["sample"] + args.batch * world]
            loss = loss_of(parallel, inputs, labels, rows, rank, world, device)
            (loss * world / len(rows)).backward()  # DDP divides by the number of ranks
            loss, stopping = total(device, loss.item() / len(rows), len(stops))
            if not math.isfinite(loss):
                log("FATAL", rank, step=at["step"] + 1, loss=loss)
                return NOT_LEARNED
            optimizer.step()
            optimizer.zero_grad()
            at["sample"], at["step"] = at["sample"] + len(rows), at["step"] + 1
            at["first"] = loss if at["first"] is None else at["first"]
            if rank == 0:
                log("STEP", rank, step=at["step"], epoch=number, loss=f"{loss:.6f}")
            name = f"epoch-{number:04d}-step-{at['step']:08d}"
            if stopping:  # the same on all ranks
                if args.output:
                    checkpoint(name)
                code, status = (SAVED, "saved") if args.output else (STOPPED, "stopped")
                log("DONE", rank, status=status, exit_code=code, step=at["step"])
                return code
            if args.save_every and at["step"] % args.save_every == 0:
                checkpoint(name)
        with torch.no_grad():
            rows = torch.arange(len(validation[1]))
            value = loss_of(model, *validation, rows, rank, world, device).item() / len(rows)
        [value] = total(device, value)
        best, at["best"] = value < at["best"], min(value, at["best"])
        at["epoch"], at["sample"] = number, 0
        checkpoint(f"epoch-{number:04d}", best)
        if rank == 0:
            log("EPOCH", rank, epoch=number, of=args.epochs, val_loss=f"{value:.6f}", best=best)
    learned = at["best"] < 0.7 * at["first"]
    code, status = (0, "finished") if learned else (NOT_LEARNED, "not-learned")
    weights = b"".join(each.cpu().numpy().tobytes() for each in model.state_dict().values())
    facts = {"val_loss": f"{at['best']:.6f}", "weights": hashlib.sha256(weights).hexdigest()[:16]}
    log("DONE", rank, status=status, exit_code=code, **facts)
    return code


def main(argv=None):
    sys.stdout.reconfigure(errors="backslashreplace")  # a pod's output may be ASCII
    args = parse(argv)
    single = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (single | {"MASTER_PORT": "0"}).items():
        os.environ.setdefault(name, value)  # a plain `python train.py` is one rank
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    log("DDP", rank, world=world, device=device, torch=torch.__version__)
    code = train(args, rank, world, device)
    if device.type == "cuda":  # Gloo's end may wait for its thread for ever (torch 2.6)
        dist.destroy_process_group()
    return code


if __name__ == "__main__":
    exit_code = main()
    # Without the interpreter's own end, in which Gloo's thread may abort it (torch 2.14, 2.15).
    atexit.register(os._exit, exit_code)
    sys.exit(exit_code)
