"""Documents as one file of numbers on this node's disk, made once by the node's processes together.

The file holds an int32 a token: a learned token is its number t, one that is only read is -t-1. It is mapped, not
loaded, so its size is not limited by memory. The result does not depend on how many processes made it.
"""

from __future__ import annotations

import array
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from gpuworker.train.dataset import DataError, Piece, Render, documents
from gpuworker.train.distributed import World

IGNORED = -100  # the label of a position that nothing is learned at, as torch's cross entropy has it
FORMAT = 1
TOGETHER = 512  # documents that are tokenized in one call
BLOCK = 1 << 22  # tokens that are looked at together


@dataclass
class Codec:
    """What the files need of a tokenizer. `encode` takes texts and adds no special tokens."""

    encode: Callable[[list[str]], list[list[int]]]
    bos: int | None
    eos: int
    render: Render | None
    digest: str  # of all that decides which numbers come out


class Samples:
    """Samples of at most `length` + 1 tokens: inputs are all but the last, labels all but the first.

    Packed, documents stand one after another and are cut every `length` tokens, so that every token but the very first
    is learned once. Not packed, a sample is one document, cut off at `length` + 1 tokens.
    """

    def __init__(self, folder: Path, length: int, pack: bool):
        self.length, self.pack = length, pack
        count = (folder / "tokens").stat().st_size // 4
        self.tokens = torch.from_file(str(folder / "tokens"), size=count, dtype=torch.int32)
        ends = torch.from_file(str(folder / "ends"), size=(folder / "ends").stat().st_size // 8, dtype=torch.int64)
        if pack:
            self.starts = torch.arange(0, max(0, count - 1), length)
            self.ends = torch.clamp(self.starts + length + 1, max=count)
        else:
            self.starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])
            self.ends = torch.minimum(ends, self.starts + length + 1)
        self.sizes = torch.clamp(self.ends - self.starts - 1, min=0)
        # Learned tokens of each sample: every rank knows from this how many a step learns, without asking the others.
        # The first token is no label, and so not learned.
        firsts = torch.minimum(self.starts + 1, self.ends)
        self.learned = learned_before(self.tokens, self.ends) - learned_before(self.tokens, firsts)

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels, int64 [rows, width]. A row below 0 is padding. Width is `length` if packed, else the
        longest row's: padding stands right of the text, where causal attention never looks from the text."""
        lengths = torch.where(rows < 0, 0, self.sizes[rows]).tolist()
        width = self.length if self.pack else max(1, *lengths)
        inputs = torch.zeros(len(rows), width, dtype=torch.int64)
        labels = torch.full((len(rows), width), IGNORED, dtype=torch.int64)
        for place, (row, length) in enumerate(zip(rows.tolist(), lengths, strict=True)):
            if length > 0:
                start = int(self.starts[row])
                window = self.tokens[start : start + length + 1].long()
                inputs[place, :length] = torch.where(window < 0, -window - 1, window)[:-1]
                labels[place, :length] = torch.where(window < 0, IGNORED, window)[1:]
        return inputs, labels


def learned_before(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """How many learned tokens stand before each of these places, which ascend. Holds a block of the file at a time."""
    found = torch.empty_like(places)
    total = torch.zeros(1, dtype=torch.int64)
    for first in range(0, len(tokens) + 1, BLOCK):
        block = tokens[first : first + BLOCK] >= 0
        counts = torch.cat([total, total + torch.cumsum(block, 0)])
        begin, end = torch.searchsorted(places, torch.tensor([first, first + BLOCK])).tolist()
        found[begin:end] = counts[places[begin:end] - first]
        total = counts[-1:]
    return found


def prepare(path: Path, codec: Codec, cache: Path, world: World) -> Path:
    """The folder with the tokens of a JSONL file, made now or by an earlier attempt. Collective.

    Raises DataError, on all ranks, if a line is bad, or nothing is learned.
    """
    stat = path.stat() if path.is_file() else None
    with world.all_or_none():
        if not stat:
            raise DataError(f"{path}: no such file")
    known = json.dumps([FORMAT, str(path.resolve()), stat.st_size, stat.st_mtime_ns, codec.digest])
    folder = cache / f"tokens-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
    with world.all_or_none():
        made = folder.exists()
    # Read before any process of the node makes it, and by all: else one could find it made and go ahead.
    if all(world.gather(made)):
        return folder
    part = cache / f"{folder.name}.part-{world.local_rank}"
    with world.all_or_none():
        cache.mkdir(parents=True, exist_ok=True)
        write(part, documents(path, world.local_rank, world.local_size, codec.render), codec)
    with world.all_or_none():
        if world.node_lead and not made:
            parts = [cache / f"{folder.name}.part-{rank}" for rank in range(world.local_size)]
            join(parts, folder, path)
    with world.all_or_none():
        shutil.rmtree(part)
    return folder


def write(folder: Path, found: Iterable[list[Piece]], codec: Codec) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what a killed attempt left
    folder.mkdir()
    found, total = iter(found), 0
    with open(folder / "tokens", "wb") as tokens, open(folder / "ends", "wb") as ends:
        while some := list(islice(found, TOGETHER)):
            numbers, lengths = array.array("i"), array.array("q")
            for document in encoded(some, codec):
                numbers.extend(document)
                total += len(document)
                lengths.append(total)
            numbers.tofile(tokens)
            lengths.tofile(ends)


def encoded(some: list[list[Piece]], codec: Codec) -> Iterator[list[int]]:
    """Each document with its marks of begin and end; a conversation has those of its template."""
    codes = iter(codec.encode([text for pieces in some for text, _ in pieces]))
    for pieces in some:
        document: list[int] = []
        for _, learned in pieces:
            document += next(codes) if learned else [-code - 1 for code in next(codes)]
        if len(pieces) <= 2:
            document = [*([-codec.bos - 1] if codec.bos is not None else []), *document, codec.eos]
        yield document


def join(parts: list[Path], folder: Path, path: Path) -> None:
    """Put the parts one after another; the folder's name appears last."""
    whole = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        total = 0
        with open(whole / "tokens", "wb") as tokens, open(whole / "ends", "wb") as ends:
            for part in parts:
                with open(part / "tokens", "rb") as file:
                    shutil.copyfileobj(file, tokens, 1 << 20)
                lengths = array.array("q", (part / "ends").read_bytes())
                array.array("q", (total + length for length in lengths)).tofile(ends)
                total += lengths[-1] if lengths else 0
        if total < 2:
            raise DataError(f"{path}: holds no document")
        os.rename(whole, folder)
    finally:
        shutil.rmtree(whole, ignore_errors=True)
