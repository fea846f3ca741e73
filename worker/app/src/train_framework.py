"""Training of a causal language model; see gpuworker.train.framework."""

from gpuworker.leave import leave
from gpuworker.train.framework import main

if __name__ == "__main__":
    leave(main())
