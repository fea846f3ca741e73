"""Callbacks for other training libraries, so that they stop, save, resume and log as ddp-run expects."""
