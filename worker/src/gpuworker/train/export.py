"""Export of a checkpoint to the Hugging Face layout, by one process without a GPU.

  python3 -m gpuworker.train.export /out/<run>/epoch-0002 /models/mine

A sharded checkpoint (--engine fsdp) is read a few tensors at a time: this needs memory for one file of weights and not
for the model. Adapters (--lora) are added to the weights of their base model in float32, which needs memory for it; the
result has the base model's type.
"""

from __future__ import annotations

import argparse
import errno
import glob
import json
import shutil
import sys
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.distributed import checkpoint as dcp

from gpuworker.runtime.command_line import escape_output
from gpuworker.train import model_files
from gpuworker.train.checkpoint_files import (
    MANIFEST,
    SHARDS,
    SHARED,
    STATE,
    CorruptCheckpointError,
    checkpoints_in,
    load,
)
from gpuworker.train.held_folder import LOCK, held_folder, remove_abandoned
from gpuworker.train.lora import require_weights_of_their_own

FILE_BYTES = 4 << 30
ADAPTERS = "adapter_config.json"
NOT_EXPORTED = ("optimizer.pt", "README.md")  # peft writes a model card
PREFIX = "model.model."  # of the weights in the checkpoint: the state's key, then the module within the loss


class BaseModelError(ValueError):
    """The model below the adapters is missing, or it is not the one that they were trained on."""


def export(source: Path, target: Path, base: Path | None = None, file_bytes: int = FILE_BYTES) -> None:
    """Write weights, configuration and tokenizer into a new folder. `base`: the adapters' model, if it has moved.

    The folder gets its name when it is complete. What an export left that was killed is removed by the next one.
    Raises CorruptCheckpointError, BaseModelError, ModelError or OSError.
    """
    check_source(source)
    state = load(source).state
    if target.exists():
        raise FileExistsError(errno.EEXIST, "the target must be a new folder", str(target))
    if found := next((each for each in target.absolute().parents if (each / MANIFEST).exists()), None):
        raise FileExistsError(errno.EEXIST, f"the target must not be in a checkpoint, {found}", str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target.parent.glob(f".partial-{glob.escape(target.name)}-*"))
    with held_folder(target.with_name(f".partial-{target.name}-{uuid.uuid4().hex[:8]}")) as partial:
        if (source / SHARED / ADAPTERS).is_file():
            merge(source / SHARED, base, state["identity"].get("base_model"), partial, file_bytes)
        elif (source / SHARDS).is_dir():
            join(source, partial, file_bytes)
        else:
            raise CorruptCheckpointError(f"{source} needs no export: {source / SHARED} can be loaded as it is")
        (partial / LOCK).unlink()
        partial.rename(target)


def check_source(source: Path) -> None:
    """Raise OSError unless the source may be a checkpoint, with what to name instead."""
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such folder")
    if not source.is_dir():
        raise NotADirectoryError(f"{source}: not a folder")
    if (source / MANIFEST).exists():
        return
    found = [path for path in (source / "latest", source / "best", *sorted(checkpoints_in(source))) if path.is_dir()]
    if found:
        raise IsADirectoryError(f"{source} is the folder of a run: name one of its checkpoints, such as {found[0]}")
    if (source.parent / MANIFEST).exists():
        raise IsADirectoryError(f"{source} is a part of a checkpoint: name the whole, {source.parent}")


def merge(adapters: Path, base: Path | None, expected: list[str] | None, target: Path, file_bytes: int) -> None:
    """Add the adapters to the base model's weights."""
    import peft
    from transformers import AutoConfig, AutoModelForCausalLM

    named = json.loads((adapters / ADAPTERS).read_text()).get("base_model_name_or_path")
    folder = base or Path(named or "")
    if expected is None:
        raise BaseModelError("the adapters were trained on random weights, which no file contains")
    if not (folder / "config.json").is_file():
        raise BaseModelError(f"{folder}: the adapters' base model is not there; set --base to its folder")
    found = model_files.base_fingerprints(folder)
    if differing := [each for each in model_files.weights_only(expected) if each not in found]:
        raise BaseModelError(f"{folder} is not the adapters' base model: expected {differing[0]}")
    dtype = AutoConfig.from_pretrained(folder, local_files_only=True).dtype or torch.float32
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    adapted = peft.PeftModel.from_pretrained(whole, adapters)
    require_weights_of_their_own(adapted, ",".join(sorted(adapted.active_peft_config.target_modules)))
    merged = adapted.merge_and_unload().to(dtype)
    merged.save_pretrained(target, max_shard_size=file_bytes)
    for path in adapters.iterdir():
        if path.is_file() and not path.name.startswith("adapter_") and path.name not in (STATE, *NOT_EXPORTED):
            shutil.copy(path, target)
    for path in target.iterdir():
        path.chmod(0o644)


def join(source: Path, target: Path, file_bytes: int) -> None:
    """Read the parts of all ranks, and write whole tensors."""
    from safetensors.torch import save_file

    reader = dcp.FileSystemReader(source / SHARDS)
    found = reader.read_metadata().state_dict_metadata
    sizes = {name: entry for name, entry in found.items() if name.startswith(PREFIX)}
    if not sizes:
        raise CorruptCheckpointError(f"{source} contains no language model")
    shutil.copytree(source / SHARED, target, ignore=shutil.ignore_patterns(STATE), dirs_exist_ok=True)
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
    escape_output()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder of a checkpoint")
    parser.add_argument("target", type=Path, help="new folder")
    parser.add_argument("--base", type=Path, metavar="DIR", help="folder of the adapters' base model, if it has moved")
    args = parser.parse_args(argv)
    try:
        export(args.checkpoint, args.target, args.base)
    except (BaseModelError, CorruptCheckpointError, model_files.ModelError, OSError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
