"""Smoke test of a world; see gpuworker.train.train."""

from gpuworker.runtime.process_group import exit_now
from gpuworker.train.train import main

if __name__ == "__main__":
    exit_now(main())
