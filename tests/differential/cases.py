"""Groups with the results of jobgen and of SkyPilot."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hack.deps.venv import SKYPILOT
from jobgen.api import Options, Result, to_values
from tests.differential.compare import Difference, differences

ORACLE = Path(__file__).with_name("oracle.py")


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    result: Result  # jobgen's
    answer: dict  # SkyPilot's
    differences: list[Difference]


def files(folder: Path):
    """Create the files that the groups mount."""
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("print(1)\n")
    (folder / "app.conf").write_text("a = 1\n")
    (folder / "groups" / "code").mkdir(parents=True)
    (folder / "groups" / "code" / "train.py").write_text("print(2)\n")


def run_skypilot(texts: list[str], folder: Path) -> list[dict]:
    """Return SkyPilot's answers, from a scratch home folder and without usage reports."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [SKYPILOT / "bin" / "python", ORACLE],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        },
        input=json.dumps(texts).encode(),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def compare(texts: Mapping[str, str], folder: Path) -> list[Case]:
    """Return every named text as a case; `folder` becomes the current folder, and that of the group
    files.
    """
    folder.mkdir()
    files(folder)
    answers = run_skypilot(list(texts.values()), folder)
    cases = []
    for (name, text), answer in zip(texts.items(), answers, strict=True):
        options = Options(folder=str(folder))
        result = to_values(text.encode("utf-8", "surrogatepass"), options)
        cases.append(Case(name, text, result, answer, differences(text, result, answer)))
    return cases
