"""What many ranks do together: collectives, stragglers, correctness, storage, and finding the bad node."""
