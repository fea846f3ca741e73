"""Training of a causal language model; see gpuworker.train.train_framework."""

from gpuworker.runtime.process_group import exit_now
from gpuworker.train.train_framework import main

if __name__ == "__main__":
    exit_now(main())
