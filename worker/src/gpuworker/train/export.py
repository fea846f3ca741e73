"""Export of a sharded checkpoint (--engine fsdp) to the Hugging Face layout, by one process without a GPU.

  python3 -m gpuworker.train.export /out/<run>/epoch-0002 /models/mine

It reads a few tensors at a time, so it needs memory for one file of weights and not for the model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.distributed import checkpoint as dcp

from gpuworker.train.checkpoint import SHARDS, SHARED, STATE, CorruptCheckpointError, load

FILE_BYTES = 4 << 30
PREFIX = "model.model."  # of the weights in the checkpoint: the state's key, then the module within the loss


def export(source: Path, target: Path, file_bytes: int = FILE_BYTES) -> None:
    """Write weights, configuration and tokenizer into a new folder. Raises CorruptCheckpointError or OSError."""
    from safetensors.torch import save_file

    load(source)
    if not (source / SHARDS).is_dir():
        raise CorruptCheckpointError(f"{source} is not sharded: {source / SHARED} can be loaded as it is")
    reader = dcp.FileSystemReader(source / SHARDS)
    found = reader.read_metadata().state_dict_metadata
    sizes = {name: entry for name, entry in found.items() if name.startswith(PREFIX)}
    if not sizes:
        raise CorruptCheckpointError(f"{source} contains no language model")
    shutil.copytree(source / SHARED, target, ignore=shutil.ignore_patterns(STATE))
    parts, index = list(split(sizes, file_bytes)), {}
    for number, names in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        state = {name: torch.empty(sizes[name].size, dtype=sizes[name].properties.dtype) for name in names}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process, as intended
            dcp.load(state, storage_reader=reader, no_dist=True)
        short = {name.removeprefix(PREFIX): tensor for name, tensor in state.items()}
        save_file(short, target / file, metadata={"format": "pt"})
        (target / file).chmod(0o644)
        index.update(dict.fromkeys(short, file))
    total = sum(map(bytes_of, sizes.values()))
    (target / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
    )


def bytes_of(entry) -> int:
    return entry.size.numel() * entry.properties.dtype.itemsize


def split(sizes: dict, limit: int) -> Iterator[list[str]]:
    """Names in groups of at most `limit` bytes, or of one tensor."""
    group: list[str] = []
    for name, entry in sizes.items():
        if group and sum(bytes_of(sizes[each]) for each in group) + bytes_of(entry) > limit:
            yield group
            group = []
        group.append(name)
    yield group


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder of a checkpoint")
    parser.add_argument("target", type=Path, help="new folder")
    args = parser.parse_args(argv)
    try:
        export(args.checkpoint, args.target)
    except (CorruptCheckpointError, OSError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
