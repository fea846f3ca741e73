"""Memory-mapped token file, built once by all ranks on a folder that all nodes share, or by the ranks of each node.

The file holds one int32 per token: t for a learned token, -t-1 for one that is only read. It is mapped and not loaded,
so memory does not limit its size. Its contents do not depend on the number of processes.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.train import token_record
from gpuworker.train.dataset import ChatTemplate, DataError, Segment, read_documents
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.held_folder import LOCK, held_folder, remove_abandoned

IGNORE_INDEX = -100  # label of a position that is not learned: the default of torch's cross entropy
FORMAT = 3
DOCUMENTS_PER_CALL, CHARACTERS_PER_CALL = 512, 1 << 20  # of the tokenizer, which needs about 200 bytes for each
BLOCK_TOKENS = 1 << 22  # tokens read at a time
VISIBLE_S = 120.0


Encoded = tuple[list[int], list[tuple[int, int]]]


@dataclass
class TokenCodec:
    """A tokenizer as token files need it.

    `encode` takes texts and adds no special tokens. It returns the tokens of each text and, for each token, the start
    and the end of its characters in the text.
    """

    encode: Callable[[list[str]], list[Encoded]]
    bos: int | None
    eos: int
    template: ChatTemplate | None
    digest: str  # of everything that determines the token numbers


class TokenDataset:
    """Samples of at most `length` + 1 tokens: inputs are all but the last token, labels all but the first.

    Packed: documents are concatenated and cut every `length` tokens, so that every token but the first is learned once.
    Not packed: a sample is one document, cut off at `length` + 1 tokens. Samples without labels are left out.
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
        self.token_counts = torch.clamp(self.ends - self.starts - 1, min=0)
        # Labels of each sample. From this every rank computes the labels of a step without communication. The first
        # token of a sample is not a label.
        firsts = torch.minimum(self.starts + 1, self.ends)
        self.label_counts = labels_before(self.tokens, self.ends) - labels_before(self.tokens, firsts)
        self.document_ends = ends
        self.width = max(1, int(self.token_counts.max())) if len(self.token_counts) else 1
        self.left_out = int((self.label_counts == 0).sum())
        if self.left_out < len(self.starts):  # else the caller reports that there is nothing to learn
            kept = self.label_counts > 0
            fields = (self.starts, self.ends, self.token_counts, self.label_counts)
            self.starts, self.ends, self.token_counts, self.label_counts = (field[kept] for field in fields)

    def describe(self) -> dict[str, object]:
        """What is learned, and what is cut or left out. Reads the whole file."""
        ends, count = self.document_ends, len(self.tokens)
        learned = int(labels_before(self.tokens, torch.tensor([count])))
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])
        facts: dict[str, object] = {"documents": len(ends), "learned": f"{learned / max(1, count):.1%}"}
        if self.pack:
            facts["split_documents"] = int((starts // self.length != (ends - 1) // self.length).sum())
        else:
            cut = torch.minimum(ends, starts + self.length + 1)
            facts["cut_documents"], facts["cut_tokens"] = int((ends > cut).sum()), int((ends - cut).sum())
            facts["cut_learned"] = int((labels_before(self.tokens, ends) - labels_before(self.tokens, cut)).sum())
        return {**facts, "left_out": self.left_out}

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels, int64 [rows, width]. A row below 0 is padding.

        If packed, all batches have the width of the longest sample, else that of their longest row. Padding is to the
        right of the text, where causal attention does not see it.
        """
        lengths = torch.where(rows < 0, 0, self.token_counts[rows]).tolist()
        width = self.width if self.pack else max(1, *lengths)
        inputs = torch.zeros(len(rows), width, dtype=torch.int64)
        labels = torch.full((len(rows), width), IGNORE_INDEX, dtype=torch.int64)
        for index, (row, length) in enumerate(zip(rows.tolist(), lengths, strict=True)):
            if length > 0:
                start = int(self.starts[row])
                window = self.tokens[start : start + length + 1].long()
                inputs[index, :length] = torch.where(window < 0, -window - 1, window)[:-1]
                labels[index, :length] = torch.where(window < 0, IGNORE_INDEX, window)[1:]
        return inputs, labels


def has_prompts(folder: Path, codec: TokenCodec) -> bool:
    """Whether a token file has tokens that are only read, apart from the begin of each document."""
    count = (folder / "tokens").stat().st_size // 4
    tokens = torch.from_file(str(folder / "tokens"), size=count, dtype=torch.int32)
    documents = (folder / "ends").stat().st_size // 8
    read = count - labels_before(tokens, torch.tensor([count])).item()
    return read > (documents if codec.bos is not None else 0)


def labels_before(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Number of learned tokens before each of these ascending positions. Reads one block of the file at a time."""
    counts = torch.empty_like(positions)
    total = torch.zeros(1, dtype=torch.int64)
    for first in range(0, len(tokens) + 1, BLOCK_TOKENS):
        block = tokens[first : first + BLOCK_TOKENS] >= 0
        running = torch.cat([total, total + torch.cumsum(block, 0)])
        start, end = torch.searchsorted(positions, torch.tensor([first, first + BLOCK_TOKENS])).tolist()
        counts[start:end] = running[positions[start:end] - first]
        total = running[-1:]
    return counts


def prepare(files: list[Path], codec: TokenCodec, cache: Path, context: DistributedContext) -> Path:
    """Folder with the tokens of JSONL files, built now or by an earlier attempt. Collective.

    Raises DataError on all ranks if they are empty, or a line is bad.
    """
    known = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    key = json.dumps([FORMAT, known, codec.digest])
    folder = cache / f"tokens-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    with context.raise_on_all_ranks():
        exists, problem = look_at(folder, context)
    # All ranks look before any process of the node builds it. Otherwise one could find it built and continue alone.
    found = context.all_gather_object((context.node_rank, exists, problem))
    if all(exists and not problem for _, exists, problem in found):
        return folder
    damage = next((problem for node, _, problem in found if problem and node == context.node_rank), "")
    with context.raise_on_all_ranks():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=cache).close()
        except OSError as error:
            raise DataError(f"--cache {cache}: user {os.getuid()} cannot write: {error}") from None
        if damage and context.is_local_rank_0:
            log(Tag.DATA, rank=context.rank, damaged=folder, why=damage)
            remove_damaged(folder)
    exists = exists and not damage
    if all(context.ranks_that_see(cache)):
        node, rank, ranks = "all", context.rank, context.world_size
    else:
        node, rank, ranks = str(context.node_rank), context.local_rank, context.local_world_size
    if context.is_rank_0:
        size = sum(path.stat().st_size for path in files)
        log(Tag.DATA, rank=0, tokenizes=files[0], files=len(files), bytes=size, processes=ranks, shared=node == "all")
    # Other runs, and other nodes in a folder that some of them share, may use the same cache at the same time.
    name = f"{folder.name}.part-{context.broadcast_object(uuid.uuid4().hex[:8])}-{node}"
    with contextlib.ExitStack() as held:
        with context.raise_on_all_ranks():
            part = held.enter_context(held_folder(cache / f"{name}-{rank}"))
            write_part(part, read_documents(files, rank, ranks, codec.template), codec)
        with context.raise_on_all_ranks():
            if rank == 0 and not exists:
                with held_folder(cache / f"{name}-whole") as whole:
                    join_parts([cache / f"{name}-{number}" for number in range(ranks)], whole, folder, files)
        with context.raise_on_all_ranks():
            wait_for(folder / token_record.RECORD)
    return folder


def look_at(folder: Path, context: DistributedContext) -> tuple[bool, str]:
    """Whether a token file exists, and what is wrong with this rank's share of it."""
    try:
        if context.is_local_rank_0:
            remove_abandoned(folder.parent.glob("tokens-*.part-*"))
        exists = folder.exists()
        return exists, token_record.problem(folder, context.local_rank, context.local_world_size) if exists else ""
    except OSError as error:
        raise DataError(f"--cache {folder.parent}: user {os.getuid()} cannot read: {error}") from None


def remove_damaged(folder: Path) -> None:
    """Remove a token file under another name, so that no rank takes a new one for it."""
    old = folder.with_name(f"{folder.name}.part-damaged-{uuid.uuid4().hex[:8]}")
    with contextlib.suppress(FileNotFoundError):  # another node that shares the folder was first
        folder.rename(old)
        shutil.rmtree(old)


def wait_for(path: Path) -> None:
    """Wait for a file that another node has written: for up to a minute NFS remembers that it was not there."""
    deadline = time.monotonic() + VISIBLE_S
    while not path.is_file():
        if time.monotonic() > deadline:
            raise DataError(f"{path}: another node has written it, and this one does not see it")
        time.sleep(0.2)


def write_part(folder: Path, documents: Iterable[list[Segment]], codec: TokenCodec) -> None:
    documents, total = iter(documents), 0
    with open(folder / "tokens", "wb") as tokens, open(folder / "ends", "wb") as ends:
        while chunk := next_chunk(documents):
            numbers, lengths = array.array("i"), array.array("q")
            for document in encode_documents(chunk, codec):
                numbers.extend(document)
                total += len(document)
                lengths.append(total)
            numbers.tofile(tokens)
            lengths.tofile(ends)


def next_chunk(documents: Iterator[list[Segment]]) -> list[list[Segment]]:
    """The next documents, limited in number and in characters, because tokenizing takes memory for each character."""
    chunk: list[list[Segment]] = []
    characters = 0
    while len(chunk) < DOCUMENTS_PER_CALL and characters < CHARACTERS_PER_CALL and (document := next(documents, None)):
        chunk.append(document)
        characters += sum(len(text) for text, _ in document)
    return chunk


def encode_documents(documents: list[list[Segment]], codec: TokenCodec) -> Iterator[list[int]]:
    """Each document with its begin and end tokens. A conversation has those of its template instead.

    A document is encoded as a whole, because tokenizers treat the begin of a text in a special way: the parts encoded
    one by one have other tokens. A token is learned if any of its characters is.
    """
    texts = ["".join(text for text, _ in segments) for segments in documents]
    for segments, (tokens, offsets) in zip(documents, codec.encode(texts), strict=True):
        spans = learned_spans(segments)
        document = [
            token if any(start < last and first < end for first, last in spans) else -token - 1
            for token, (start, end) in zip(tokens, offsets, strict=True)
        ]
        if len(segments) <= 2:
            document = [*([-codec.bos - 1] if codec.bos is not None else []), *document, codec.eos]
        yield document


def learned_spans(segments: list[Segment]) -> list[tuple[int, int]]:
    """Start and end of each learned part of the text that the segments form."""
    ends = list(accumulate(len(text) for text, _ in segments))
    return [(end - len(text), end) for (text, learned), end in zip(segments, ends, strict=True) if learned]


def join_parts(parts: list[Path], whole: Path, folder: Path, files: list[Path]) -> None:
    """Concatenate the parts in the temporary folder `whole`, which becomes `folder` last."""
    total = 0
    with open(whole / "tokens", "wb") as tokens, open(whole / "ends", "wb") as ends:
        for part in parts:
            with open(part / "tokens", "rb") as file:
                shutil.copyfileobj(file, tokens, 1 << 20)
            lengths = array.array("q", (part / "ends").read_bytes())
            array.array("q", (total + length for length in lengths)).tofile(ends)
            total += lengths[-1] if lengths else 0
    if total < 2:
        raise DataError(f"{', '.join(map(str, files[:3]))}: contains no document")
    token_record.write(whole)
    (whole / LOCK).unlink()
    try:
        os.rename(whole, folder)
    except OSError:  # another node was first
        if not (folder / token_record.RECORD).is_file():
            raise
