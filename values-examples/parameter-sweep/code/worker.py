"""Worker of a parameter sweep: tries each combination whose index modulo the number of ranks is its rank."""

import itertools
import json
import os
import time
import urllib.error
import urllib.request

RANK, RANKS = int(os.environ["SKYPILOT_NODE_RANK"]), int(os.environ["SKYPILOT_NUM_NODES"])
COLLECTOR = f"http://collector-0.{os.environ['SKYPILOT_JOBGROUP_NAME']}:8080"
STEPS = 2_000


def loss(rate: float, momentum: float) -> float:
    """Rosenbrock's function after gradient descent from (-1, 1). Its minimum is 0."""
    x, y, speed_x, speed_y = -1.0, 1.0, 0.0, 0.0
    for _ in range(STEPS):
        slope_x, slope_y = -2 * (1 - x) - 400 * x * (y - x * x), 200 * (y - x * x)
        speed_x, speed_y = momentum * speed_x - rate * slope_x, momentum * speed_y - rate * slope_y
        x, y = x + speed_x, y + speed_y
        if abs(x) > 1e6:
            return float("inf")
    return (1 - x) ** 2 + 100 * (y - x * x) ** 2


def send(result: dict) -> None:
    """Send results to the collector, which may not listen yet, because all ranks start together."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return urllib.request.urlopen(
                COLLECTOR, json.dumps(result).encode(), timeout=10
            ).close()
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


rates, momenta = json.loads(os.environ["RATES"]), json.loads(os.environ["MOMENTA"])
results = []
for rate, momentum in list(itertools.product(rates, momenta))[RANK::RANKS]:
    results.append({"rate": rate, "momentum": momentum, "loss": loss(rate, momentum)})
    print(f"TRIED rate {rate}, momentum {momentum}", flush=True)
send({"rank": RANK, "ranks": RANKS, "results": results})
