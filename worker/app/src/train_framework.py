"""Training of a causal language model; see gpuworker.train.framework."""

import sys

from gpuworker.train.framework import main

if __name__ == "__main__":
    sys.exit(main())
