"""Rollout server: selects actions by the trainer's newest table, and sometimes random ones to explore."""

import random
import threading
import time

import lake
from ranks import Server, call

table = [[0.0] * len(lake.MOVES) for _ in lake.LAKE]


def act(place: int) -> int:
    best = max(table[place])
    if random.random() < 0.1 or best == 0:
        return random.randrange(len(lake.MOVES))
    return table[place].index(best)


threading.Thread(target=Server(act=act).serve_forever).start()
while True:
    table = call("trainer-0", "table")
    time.sleep(0.2)
