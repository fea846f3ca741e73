"""Walks on the lake as the rollout servers say, and sends each walk to the replay buffer; until the group ends."""

import random

import lake
from ranks import ME, ask

while True:
    server = f"rollout-server-{random.randrange(2)}"
    place, over, walk = lake.START, False, []
    while not over and len(walk) < 50:
        action = ask(server, "act", place)
        after, reward, over = lake.step(place, action)
        walk.append([place, action, reward, after, over])
        place = after
    ask("replay-buffer-0", "add", {"environment": ME, "server": server, "walk": walk})
