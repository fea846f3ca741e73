"""The examples of CONTRIBUTING.md: each is applied to a copy of the repository, and its commands
are run.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hack.paths import BIN, REPO
from tests.helpers.pages import code
from tests.helpers.processes import ran

pytestmark = pytest.mark.slow
PAGE = (REPO / "CONTRIBUTING.md").read_text()
EXAMPLES = {
    title: text for title, text in re.findall(r"^## (Add [^\n]*)\n(.*?)(?=^## )", PAGE, re.M | re.S)
}
CHECK = "worker/src/gpuworker/accept/checks/randomness.py"


def block(kind: str, text: str) -> str:
    return next(iter(code(text, kind)), "")


def copied(folder: Path) -> Path:
    """The tracked and new files of the working tree."""
    names = ran(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=REPO
    ).stdout.splitlines()
    for name in names:
        if (REPO / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, folder / name)
    return folder


@pytest.mark.parametrize("title", EXAMPLES)
def test_the_steps_of_an_example_work(title, tmp_path):
    repo, text = copied(tmp_path / "repo"), EXAMPLES[title]
    if patch := block("diff", text):
        done = ran("git", "apply", "-", cwd=repo, input=patch)
        assert done.returncode == 0, (
            f"the source has changed: write the diff of CONTRIBUTING.md anew\n{done.stderr}"
        )
    else:
        (repo / CHECK).write_text(block("python", text))
    replaced = {
        "make generate": "python -m hack.gen.generate",
        "make test-of FILE=": "python -m hack.test_of ",
    }
    commands = block("sh", text)
    for old, new in replaced.items():
        commands = commands.replace(old, new)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(repo / "generator/src"),
    }
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=repo,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    assert "written: " in done.stdout and "passed" in done.stdout


def test_there_is_an_example_of_each_kind():
    assert {"value", "cause", "check"} <= {word for title in EXAMPLES for word in title.split()}
