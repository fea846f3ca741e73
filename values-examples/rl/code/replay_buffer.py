"""Replay buffer: stores the last steps of all environments and returns random samples of them."""

import collections
import random
import signal
import sys
import threading

from ranks import Server

steps: collections.deque = collections.deque(maxlen=10_000)
rewards: collections.deque = collections.deque(maxlen=50)
walks: collections.Counter = collections.Counter()
grown = threading.Condition()


def add(message: dict) -> None:
    with grown:
        steps.extend(message["walk"])
        rewards.append(message["walk"][-1][2])
        walks.update([message["environment"], message["server"]])
        grown.notify_all()


def sample(count: int) -> dict:
    """Random steps, and the number of recent walks that reached the goal."""
    with grown:
        grown.wait_for(lambda: len(steps) >= count, timeout=20)
        return {"steps": random.choices(steps, k=count), "reached": sum(rewards)}


def stop(*_: object) -> None:
    print(f"BUFFER ends with {len(steps)} steps", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
threading.Thread(
    target=Server(add=add, sample=sample, walks=lambda _: walks).serve_forever, daemon=True
).start()
while True:
    signal.pause()
