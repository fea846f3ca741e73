"""Callbacks for any Trainer of transformers; train_framework.py uses all of them."""
