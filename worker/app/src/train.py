"""Smoke test of a world; see gpuworker.train.smoke."""

import sys

from gpuworker.train.smoke import main

if __name__ == "__main__":
    sys.exit(main())
