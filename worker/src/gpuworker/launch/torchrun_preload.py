"""Early start of torchrun: imports torch while the nodes join, then becomes torchrun.

  torchrun_preload.py READY      prints READY once torch is imported; then, with a line of JSON on standard input,
                                 runs torchrun so; at its end of file, exits

The launcher holds the other end of standard input for as long as it lives. Its end ends torchrun as a SIGTERM does:
ranks that outlive a killed launcher would hold the GPUs. (In a container, the end of process 1 ends all.)

It imports nothing of gpuworker, so that it works from a zipapp.
"""

import json
import os
import signal
import sys
import threading

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if path != here]

for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(encoding="utf-8")  # the launcher reads it; PYTHONIOENCODING is for the program

from torch.distributed import run  # noqa: E402


def end_with(launcher: int) -> None:
    """Wait for the end of file of `launcher`, a pipe."""
    while os.read(launcher, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    print(sys.argv[1], file=sys.stderr, flush=True)
    if line := sys.stdin.buffer.readline():
        order = json.loads(line)
        os.environ.clear()
        os.environ.update(order["environ"])
        threading.Thread(target=end_with, args=[os.dup(0)], daemon=True).start()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks inherit it
        sys.argv = ["torchrun", *order["arguments"]]
        run.main()
