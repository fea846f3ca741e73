"""What a sample teaches, as text."""

from __future__ import annotations

from gpuworker.train.data import IGNORED


def learned(tokenizer, sample: dict[str, list[int]]) -> list[str]:
    """The texts of adjacent tokens that are learned."""
    spans, before = [], IGNORED
    for label in sample["labels"]:
        if label != IGNORED:
            spans = [*spans, [label]] if before == IGNORED else [*spans[:-1], [*spans[-1], label]]
        before = label
    return [tokenizer.decode(span) for span in spans]
