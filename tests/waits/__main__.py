"""What commands that wait make of a fleet and of a run, as tables: python -m tests.waits [fleets] [runs].

Writes the exit codes and seconds to docs/operate.md. Fails if a command that the notes of a
chart name contradicts the verdict. Each cell is a release of its own on the cluster, on CPUs; several run at once.
"""

from __future__ import annotations

import os
import sys

from hack import test_cluster
from hack.deps import go_tools
from hack.paths import ToolError, main
from tests.helpers.kube import Cluster
from tests.waits import fleets, runs

PARTS = {"fleets": fleets.write, "runs": runs.write}


def entry() -> None:
    chosen = sys.argv[1:] or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        raise ToolError(f"no such part: {', '.join(sorted(unknown))}; the parts are: {', '.join(PARTS)}")
    os.environ |= test_cluster.prepare()
    go_tools.build("helm3")
    cluster = Cluster(os.environ["WORKER_IMAGE"])
    if wrong := [each for part in chosen for each in PARTS[part](cluster)]:
        raise ToolError("; ".join(wrong))


if __name__ == "__main__":
    main(entry)
