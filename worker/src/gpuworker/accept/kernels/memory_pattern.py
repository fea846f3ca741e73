"""Memory test: write one pattern to all of the memory, then read and compare all of it, for each
pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

CHUNK_BYTES = 256 << 20
SHOWN = 4  # wrong words reported one by one


def _address(first: int, words: int, device: torch.device) -> torch.Tensor:
    """Each word holds its own byte address: finds address lines that are stuck or swapped."""
    return torch.arange(first, first + words, device=device) * 8


def _inverted(first: int, words: int, device: torch.device) -> torch.Tensor:
    """Inverted addresses: find bits that are stuck at 0 or 1."""
    return _address(first, words, device).bitwise_not_()


def _random(first: int, words: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(first)
    return torch.randint(-(2**63), 2**63 - 1, (words,), generator=generator, device=device)


PATTERNS: dict[str, Callable[[int, int, torch.device], torch.Tensor]] = {
    "address": _address,
    "inverted address": _inverted,
    "random": _random,
}


def test(device: torch.device, size: int, flip: bool = False) -> tuple[int, list[str]]:
    """Test about `size` bytes. Returns the tested bytes and the errors as texts. `flip` flips bit
    17 of one word.

    Addresses are offsets in the tested memory; physical addresses are not available.
    """
    chunk_words = min(CHUNK_BYTES, size // 4) // 8
    chunks = [
        torch.empty(chunk_words, dtype=torch.int64, device=device)
        for _ in range(size // 8 // chunk_words)
    ]
    wrong: list[str] = []
    for name, fill in PATTERNS.items():
        for index, chunk in enumerate(chunks):
            chunk.copy_(fill(index * chunk_words, chunk_words, device))
        if flip and name == "inverted address":
            chunks[-1][chunk_words // 3] ^= 1 << 17
        for index, chunk in enumerate(chunks):
            wrong += _differences(
                chunk, fill(index * chunk_words, chunk_words, device), index, name
            )
    tested = len(chunks) * chunk_words * 8
    if len(wrong) > SHOWN:
        wrong = [*wrong[:SHOWN], f"{len(wrong) - SHOWN} more findings in its memory"]
    return tested, wrong


def _differences(chunk: torch.Tensor, written: torch.Tensor, index: int, name: str) -> list[str]:
    bad = (chunk != written).nonzero().flatten()
    found = []
    for position in bad[:SHOWN].tolist():
        seen, wanted = (tensor[position].item() % 2**64 for tensor in (chunk, written))
        bits = [bit for bit in range(64) if (seen ^ wanted) >> bit & 1]
        which = (
            f"bit{'s' * (len(bits) > 1)} {', '.join(map(str, bits))}"
            if len(bits) <= 4
            else f"{len(bits)} bits"
        )
        address = (index * chunk.numel() + position) * 8
        found.append(
            f"memory at byte 0x{address:x} of the tested memory reads 0x{seen:016x} where 0x{wanted:016x} was written,"
            f" pattern {name} ({which})"
        )
    if len(bad) > SHOWN:
        found.append(
            f"{len(bad)} words are wrong in the 0x{chunk.numel() * 8:x} bytes from 0x{index * chunk.numel() * 8:x}"
        )
    return found
