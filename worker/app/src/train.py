"""Smoke test of a world; see gpuworker.train.smoke."""

from gpuworker.leave import leave
from gpuworker.train.smoke import main

if __name__ == "__main__":
    leave(main())
