"""Stand-in for torchrun, for tests that do not need a rendezvous: it starts the ranks within milliseconds."""

import os
import subprocess
import sys
import time

time.sleep(float(os.environ.get("STAND_IN_IMPORT_S", "0")))  # a slow disk or network


def main():
    options, program = {}, []
    for word in sys.argv[1:]:
        if not program and word.startswith("--"):  # also the -- before the program
            name, _, value = word.partition("=")
            options[name] = value
        else:
            program.append(word)
    nodes, each = int(options["--nnodes"]), int(options["--nproc-per-node"])
    node = int(os.environ["NODE_RANK"])
    time.sleep(float(os.environ.get("STAND_IN_RENDEZVOUS_S", "0")))
    while (file := os.environ.get("STAND_IN_RENDEZVOUS_FILE")) and not os.path.exists(file):
        time.sleep(0.05)
    ranks = []
    for local in range(each):
        world = {"LOCAL_RANK": local, "RANK": node * each + local, "WORLD_SIZE": nodes * each}
        environ = os.environ | {name: str(value) for name, value in world.items()}
        ranks.append(subprocess.Popen(program, env=environ, start_new_session=True))
    while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
        time.sleep(0.05)
    for local, rank in enumerate(ranks):
        if rank.poll():
            print(
                f"failed (exitcode: {rank.returncode}) local_rank: {local} (pid: {rank.pid}) of binary: python",
                file=sys.stderr,
            )
            for other in ranks:
                other.terminate()
            sys.exit(1)
