"""What became of a group on the cluster: `cluster` reads objects, everything else judges them without a cluster."""
