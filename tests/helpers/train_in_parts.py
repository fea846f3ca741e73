"""train_framework.py with losses in parts of 16 tokens of 257 words."""

from gpuworker.train import token_loss, train_framework

TOKENS = 16


def main(arguments: list[str]) -> int:
    token_loss.PART_BYTES = TOKENS * 4 * 257
    return train_framework.main(arguments)
