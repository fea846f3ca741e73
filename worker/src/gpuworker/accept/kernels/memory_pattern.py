"""Memory test: write one pattern to all of the memory, then read and compare all of it, for each
pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

CHUNK_BYTES = 256 << 20


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
    """Test about `size` bytes. Returns the tested bytes and the errors of each pattern as text.
    `flip` flips bit 17 of one word.

    Addresses are offsets in the tested memory; physical addresses are not available.
    """
    chunk_words = min(CHUNK_BYTES, size // 4) // 8
    chunks = [
        torch.empty(chunk_words, dtype=torch.int64, device=device)
        for _ in range(size // 8 // chunk_words)
    ]
    errors = []
    for name, fill in PATTERNS.items():
        for index, chunk in enumerate(chunks):
            chunk.copy_(fill(index * chunk_words, chunk_words, device))
        if flip and name == "inverted address":
            chunks[-1][chunk_words // 3] ^= 1 << 17
        wrong, first = 0, ""
        for index, chunk in enumerate(chunks):
            written = fill(index * chunk_words, chunk_words, device)
            if count := int((bad := chunk != written).sum()):
                place = int(bad.nonzero()[0])
                address = (index * chunk_words + place) * 8
                seen, wanted = (words[place].item() % 2**64 for words in (chunk, written))
                first = first or (
                    f"byte 0x{address:x} of the tested memory reads 0x{seen:016x} where "
                    f"0x{wanted:016x} was written ({bits(seen ^ wanted)})"
                )
                wrong += count
        if wrong:
            errors.append(f"pattern {name}: {first}, {wrong} wrong words in all")
    return len(chunks) * chunk_words * 8, errors


def bits(differing: int) -> str:
    found = [str(bit) for bit in range(64) if differing >> bit & 1]
    return f"bit {', '.join(found)}" if len(found) <= 4 else f"{len(found)} bits"
