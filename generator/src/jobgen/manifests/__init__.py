"""Kubernetes manifests of other launchers, read as values of ddp-run or of a group."""
