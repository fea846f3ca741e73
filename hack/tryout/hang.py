"""A training on two ranks, in which rank 1 waits in step 3 for a batch that never comes."""

import time

import torch
import torch.distributed as dist


def next_batch(step: int, rank: int) -> torch.Tensor:
    if step == 3 and rank == 1:
        time.sleep(3600)
    return torch.randn(32, 16)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        loss = model(next_batch(step, rank)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}")


main()
