"""Environment: takes the actions of the rollout servers and sends each walk to the replay buffer."""

import random

import lake
from ranks import ME, call

while True:
    server = f"rollout-server-{random.randrange(2)}"
    place, over, walk = lake.START, False, []
    while not over and len(walk) < 50:
        action = call(server, "act", place)
        after, reward, over = lake.step(place, action)
        walk.append([place, action, reward, after, over])
        place = after
    call("replay-buffer-0", "add", {"environment": ME, "server": server, "walk": walk})
