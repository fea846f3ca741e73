"""Smoke test of a world; see gpuworker.train.train_smoke."""

from gpuworker.runtime.process_exit import leave
from gpuworker.train.train_smoke import main

if __name__ == "__main__":
    leave(main())
