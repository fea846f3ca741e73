"""The programs of a chart as its ConfigMap mounts them into a pod."""

import re
import textwrap
from pathlib import Path

from hack.gen import programs
from hack.paths import REPO

TEMPLATE = (REPO / "charts/shared/programs.yaml").read_text()
(CALL,) = map(textwrap.dedent, re.findall(r"(?s): \|\n(.*?) *\{\{- end", TEMPLATE))


def mount(chart: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in programs.files(chart):
        (folder / path.name).write_bytes(content)
    for name in programs.CHARTS[chart]:
        write_call(folder, name)
    return folder


def write_call(folder: Path, name: str):
    (folder / name).write_text(CALL)
    (folder / name).chmod(0o555)
