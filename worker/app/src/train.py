"""Smoke test of a world; see gpuworker.train.train."""

import sys

from gpuworker.train.train import main

if __name__ == "__main__":
    sys.exit(main())
