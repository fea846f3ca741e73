"""One file a check; gpuworker.accept.registry finds them."""
