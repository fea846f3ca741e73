"""Run a program beside another one that holds 30 GiB of the GPU and computes: hack.gpu.beside
DEVICE -m MODULE ARGS…
"""

from __future__ import annotations

import subprocess
import sys

BUSY = """
import torch
held = torch.zeros(30 << 28, device="cuda")
a = torch.randn(8192, 8192, device="cuda").bfloat16()
print("busy", flush=True)
while True:
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
"""


def main() -> int:
    device, *program = sys.argv[1:]
    if device == "cpu":
        return subprocess.call([sys.executable, *program])
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as other:
        try:
            other.stdout.readline()
            return subprocess.call([sys.executable, *program])
        finally:
            other.kill()


if __name__ == "__main__":
    sys.exit(main())
