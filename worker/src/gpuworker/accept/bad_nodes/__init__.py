"""Bad-node search across the nodes of one run."""
