"""A small DDP training that ddp-launch starts, with a fault of the last rank in its fifth step.

crash    it raises an exception
hang     it sleeps
spin     its GPU is busy for minutes, so that the next collective does not end
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist

STEPS, FAULT_AT = 8, 5
SPIN_CYCLES = (
    600 * 10**9
)  # minutes at any clock; then the GPU is free again, even if nothing ends the process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--fault", choices=["crash", "hang", "spin"])
    parser.add_argument("--gloo", action="store_true", help="Gloo, and all ranks on the first GPU")
    args = parser.parse_args()
    gpu = args.device == "cuda"
    device = (
        torch.device("cuda", 0 if args.gloo else int(os.environ["LOCAL_RANK"]))
        if gpu
        else torch.device("cpu")
    )
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if args.gloo or not gpu else "nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if args.fault and rank == size - 1 and step == FAULT_AT:
            inject(args.fault)
        loss = model(torch.full((4, 64), rank + 1.0, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = torch.tensor([rank + 1.0], device=device)
        dist.all_reduce(total)
        if total.item() != size * (size + 1) / 2:
            raise SystemExit(f"rank {rank}: the sum over {size} ranks is {total.item()}")
    dist.barrier()
    dist.destroy_process_group()


def inject(fault: str) -> None:
    if fault == "crash":
        raise ValueError("injected by the GPU pack")
    if fault == "hang":
        time.sleep(3600)
    torch.cuda._sleep(SPIN_CYCLES)


if __name__ == "__main__":
    main()
