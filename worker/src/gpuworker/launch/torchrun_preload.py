"""Early start of torchrun: imports torch while the nodes join, then becomes torchrun.

  torchrun_preload.py READY      prints READY once torch is imported; then, with a line of JSON on standard input,
                                 runs torchrun so; at its end of file, exits

It imports nothing of gpuworker, so that it works from a zipapp.
"""

import json
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if path != here]

from torch.distributed import run  # noqa: E402

if __name__ == "__main__":
    print(sys.argv[1], file=sys.stderr, flush=True)
    if line := sys.stdin.readline():
        order = json.loads(line)
        os.environ.clear()
        os.environ.update(order["environ"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks inherit it
        sys.argv = ["torchrun", *order["arguments"]]
        run.main()
