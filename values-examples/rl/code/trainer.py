"""Trainer: Q-learning on samples of the replay buffer. The ranks sum their updates."""

import os
import threading
import time

import lake
from ranks import ME, Server, call

RANK, RANKS = int(os.environ["SKYPILOT_NODE_RANK"]), int(os.environ["SKYPILOT_NUM_NODES"])
RATE, DISCOUNT, BATCH = 0.5, 0.9, 64
GOOD, DEADLINE_S = 30, 120  # walks of the last 50 that reach the goal

table = [[0.0] * len(lake.MOVES) for _ in lake.LAKE]
parts: list[list] = []
total: list = []


def add_up() -> None:
    global parts, total
    total, parts = (
        [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*parts, strict=True)],
        [],
    )


meeting = threading.Barrier(RANKS, action=add_up)


def all_reduce(part: list) -> list:
    """Sum of all ranks' parts, computed by rank 0 once it has all of them."""
    parts.append(part)
    meeting.wait(60)
    return total


def learn(batch: list) -> list:
    """Update of the table from the steps of a batch."""
    change = [[0.0] * len(row) for row in table]
    for place, action, reward, after, over in batch:
        target = reward + (0 if over else DISCOUNT * max(table[after]))
        change[place][action] += RATE * (target - table[place][action]) / len(batch)
    return change


if RANK == 0:
    server = Server(table=lambda _: table, all_reduce=all_reduce)
    threading.Thread(target=server.serve_forever, daemon=True).start()
start, updates, reached = time.monotonic(), 0, 0
while reached < GOOD or len(lake.best_path(table) or []) != lake.SHORTEST:
    if time.monotonic() - start > DEADLINE_S:
        raise SystemExit(f"{ME} has not learned the shortest path in {updates} updates")
    sample = call("replay-buffer-0", "sample", BATCH)
    part = [*learn(sample["steps"]), [sample["reached"]]]
    *change, [reached] = all_reduce(part) if RANK == 0 else call("trainer-0", "all_reduce", part)
    reached /= RANKS  # the same number on all ranks, so all stop together
    table = [
        [old + new for old, new in zip(*rows, strict=True)]
        for rows in zip(table, change, strict=True)
    ]
    updates += 1
    if updates % 50 == 0:
        print(f"UPDATE {updates}: {reached:.0f} of the last 50 walks reach the goal", flush=True)
if RANK == 0:
    server.close()
    for name, count in sorted(call("replay-buffer-0", "walks").items()):
        print(f"WALKS {name} {count}")
print(
    f"LEARNED {' '.join(lake.best_path(table))} after {updates} updates in {time.monotonic() - start:.1f} s"
)
