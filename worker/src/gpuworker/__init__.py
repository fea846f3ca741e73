"""What runs inside the pods: acceptance tests (accept) and the torchrun launcher (launch)."""

__version__ = "0.1.0"
