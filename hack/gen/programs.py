"""The programs that a chart carries, in one archive: start.py, and the modules that they import."""

from __future__ import annotations

import ast
import importlib.util
import io
import lzma
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from hack.paths import REPO

SOURCES = REPO / "worker/src"
START = REPO / "worker/start.py"
HOOK = SOURCES / "gpuworker/group/torchrun_hook.py"
CHARTS = {
    "ddp-run": ("ddp-launch", "ddp-tests", "train", "train-framework"),
    "gpu-accept": ("accept-node", "accept-report", "ddp-tests"),
    "job-group": ("group-agent", "ddp-launch", "torchrun", "accept-node"),
}
REGISTRY = SOURCES / "gpuworker/judgement/registry.py"  # imports every module below CHECKS
CHECKS = SOURCES / "gpuworker/accept/checks"
DATA = (".json", ".css", ".js")


def files(chart: str) -> Iterator[tuple[Path, bytes]]:
    """The chart's archive with its content."""
    tree = packed(sources(modules()[name] for name in CHARTS[chart]))
    # As gzip they would be too large for a ConfigMap. A Python without lzma is rare: torchvision
    # needs it.
    entries = {"modules.tar.xz": lzma.compress(tree, preset=9 | lzma.PRESET_EXTREME)}
    if chart == "job-group":  # so that also `python -m torch.distributed.run` finds the launcher
        entries["sitecustomize.py"] = HOOK.read_bytes()
    yield REPO / "charts" / chart / "files/programs.pyz", archive(entries)


def archive(entries: dict[str, bytes]) -> bytes:
    """A zip file of start.py and the entries, which is the same everywhere."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as target:
        for name, content in sorted({"start.py": START.read_bytes(), **entries}.items()):
            entry = zipfile.ZipInfo(name)
            entry.create_system = 3  # Unix, where zipfile has the system's own
            target.writestr(entry, content)
    return stream.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    """Content of an archive: two versions of lzma may write different bytes for the same modules."""
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        found = {name: source.read(name) for name in source.namelist()}
    return {**found, "modules.tar.xz": lzma.decompress(found["modules.tar.xz"])}


def modules() -> dict[str, str]:
    """Each program's module, as start.py has it."""
    spec = importlib.util.spec_from_file_location("start", START)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PROGRAMS


def sources(names: Iterable[str]) -> set[Path]:
    """Files of the modules, of all that they import or name, and data in the same packages."""
    found: set[Path] = set()
    todo = [file for name in names for file in files_of(name)]
    while todo:
        file = todo.pop()
        if file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            elif isinstance(node, ast.Import):
                named = [each.name for each in node.names]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = [node.value]
            else:
                continue
            todo += [each for name in named for each in files_of(name)]
        if file == REGISTRY:
            todo += CHECKS.rglob("*.py")
    data = {each for file in found for each in file.parent.iterdir() if each.suffix in DATA}
    return found | data


def files_of(name: str) -> Iterator[Path]:
    """Files of a module of the worker, with those of the packages around it."""
    parts = name.split(".")
    if parts[0] != "gpuworker" or not all(part.isidentifier() for part in parts):
        return
    for count in range(1, len(parts) + 1):
        path = SOURCES.joinpath(*parts[:count])
        yield from (
            each for each in (path / "__init__.py", path.with_suffix(".py")) if each.exists()
        )


def packed(paths: Iterable[Path]) -> bytes:
    """A tar file that is the same everywhere."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(paths):
            member = tarfile.TarInfo(path.relative_to(SOURCES).as_posix())
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))
    return stream.getvalue()
