"""Training programs: one loop for a smoke test (train.py) and for causal language models (train_framework.py)."""
