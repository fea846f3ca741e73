"""Start a torchrun world that forms or says why not."""
