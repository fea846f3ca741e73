"""Folder of a model in the Hugging Face layout: whether it is complete and readable, and which model it is."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from gpuworker.train.agreement import file_fingerprint
from gpuworker.train.checkpoint_files import MANIFEST, SHARED

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
# Members of a configuration that do not change what the model computes in float32.
NAMES = ("_name_or_path", "_commit_hash", "architectures", "dtype", "torch_dtype", "transformers_version")


class ModelError(ValueError):
    """A model or tokenizer that cannot be used. The message contains what to do."""


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn errors of a reader, for example of a file that is not JSON, into ModelError.

    A fault of the disk or a lack of memory stays what it is: it is not the model's.
    """
    try:
        yield
    except (ModelError, MemoryError, torch.OutOfMemoryError):
        raise
    except PermissionError as error:
        raise ModelError(f"{error.filename or folder}: user {os.getuid()} cannot read it") from None
    except Exception as error:
        passing = isinstance(error, OSError) and error.errno is not None  # transformers raises others without a number
        if passing or "allocate memory" in str(error):
            raise
        why = " ".join(str(error).split())[:500]
        raise ModelError(f"{folder}: cannot be loaded: {type(error).__name__}: {why}") from None


def weight_files(folder: Path) -> list[str]:
    """Names of the files that hold the weights, of which some may be missing."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{index}: not a list of weights ({error}); copy the model again") from None


def way_out(folder: Path) -> str:
    """What to name in place of a checkpoint or a part of one. Empty for any other folder."""
    if (folder / MANIFEST).is_file() and (folder / SHARED / "config.json").is_file():
        return f"it is a checkpoint: name its model, {folder / SHARED}, or export it if it has --engine fsdp"
    for checkpoint in (folder, folder.parent):
        if (checkpoint / MANIFEST).is_file():
            return f"export the checkpoint first: python3 -m gpuworker.train.export {checkpoint} NEW_FOLDER"
    return ""


def check_model(folder: Path) -> None:
    """Raise ModelError unless a folder holds a configuration and complete weight files. Reads no weights."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; is the models volume mounted?")
    if not (folder / "config.json").is_file():
        hint = way_out(folder) or "this is not a model in the Hugging Face layout"
        raise ModelError(f"{folder}: no config.json; {hint}")
    with reading(folder):
        try:
            settings = json.loads((folder / "config.json").read_text())
        except ValueError as error:
            raise ModelError(f"{folder / 'config.json'}: not JSON ({error}); copy the file again") from None
        if not isinstance(settings, dict):
            raise ModelError(f"{folder / 'config.json'}: not an object; copy the file again")
        check_weights(folder)


def check_weights(folder: Path) -> None:
    names = weight_files(folder)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing == ["model.safetensors"] == names:
        hint = way_out(folder)
        if not hint and (others := sorted(path.name for path in folder.glob("*.bin"))):
            hint = f"{others[0]} has the older format: convert it to safetensors"
        raise ModelError(f"{folder}: neither model.safetensors nor model.safetensors.index.json{hint and f'; {hint}'}")
    if missing:
        raise ModelError(
            f"{folder}: {len(missing)} of {len(names)} weight files are missing: {', '.join(missing[:8])}; "
            "copy the model again"
        )
    for name in names:
        if problem := length_problem(folder / name):
            raise ModelError(f"{folder / name}: {problem}; copy the file again")


def length_problem(path: Path) -> str:
    """Problem with the length of a safetensors file, or an empty string.

    The file consists of 8 bytes with the header's length, the header, and the tensors that the header lists.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            return f"truncated: {size} bytes, and its header alone has {length}"
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError):
            return "not a safetensors file: the header cannot be read"
    whole = 8 + length + max(ends, default=0)
    return "" if size == whole else f"truncated: {size} bytes of {whole}"


def check_tokenizer(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; is the models volume mounted?")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(f"{folder}: no tokenizer: none of {', '.join(TOKENIZER_FILES)}")


def config_facts(folder: Path) -> list[str]:
    """What the configuration says of the model itself: without names, versions and the type of its file."""
    try:
        config = json.loads((folder / "config.json").read_text())
        return facts_of(config)
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{folder / 'config.json'}: not a configuration ({error}); copy the model again") from None


def facts_of(config: dict) -> list[str]:
    return [f"{name}={json.dumps(without_names(config[name]))}" for name in sorted(without_names(config))]


def without_names(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {name: without_names(value[name]) for name in sorted(value) if name not in NAMES}


def base_fingerprints(folder: Path) -> list[str]:
    """The weights of a model."""
    return [f"{name}: {file_fingerprint(folder / name)}" for name in weight_files(folder)]


def weights_only(fingerprints: list[str]) -> list[str]:
    """Without the configuration, of which earlier versions listed a fingerprint too."""
    return [each for each in fingerprints if not each.startswith("config.json:")]


def describe_misfit(missing: Iterable[str], surplus: Iterable[str], other_shapes: Iterable[str]) -> str:
    """How the tensors of a file do not fit a model; empty if they do."""
    kinds = {"missing": missing, "not part of the model": surplus, "of another shape": other_shapes}
    found = {kind: sorted(names) for kind, names in kinds.items()}
    return "; ".join(f"{len(names)} are {kind}: {describe_names(names)}" for kind, names in found.items() if names)


def describe_names(names: list[str]) -> str:
    """The first few of some tensors' names."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
