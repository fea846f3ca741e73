"""Training: one loop for a smoke test (train.py) and for fine-tuning a causal language model (train_framework.py)."""
