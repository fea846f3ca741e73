"""The programs of a chart as its ConfigMap mounts them into a pod."""

from __future__ import annotations

from pathlib import Path

from hack.gen import programs


def mount(chart: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in programs.files(chart):
        names = programs.modules() if path.name == "start.py" else [path.name]
        for name in names:
            file = folder / name
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
            file.chmod(0o555)
    return folder
