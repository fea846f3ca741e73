"""Command blocks of a page, followed in order as its reader does."""

import os
import re
import sys
from pathlib import Path

from tests.helpers.kube import REPO
from tests.helpers.processes import ran


def code(text: str, kind: str = "sh") -> list[str]:
    """The blocks of this kind in a page."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def blocks(page: str, section: str = "") -> list[str]:
    """The blocks of a page, or of one section of it, without those that it marks as not run."""
    text = (REPO / page).read_text()
    if section:
        (text,) = [part for part in text.split("\n## ") if part.startswith(f"{section}\n")]
    return [block for block in code(text) if not block.startswith("# not run")]


def install(folder: Path, command: str):
    """A command of the generator, from the sources of this repository: jobgen or kubectl-runs."""
    module = command.replace("-", "_")
    installed = folder / command
    installed.write_text(
        f'#!/bin/sh\nPYTHONPATH={REPO}/generator/src exec {sys.executable} -m {module} "$@"\n'
    )
    installed.chmod(0o755)


class Reader:
    """A folder with what the reader has of this repository, git and jobgen; `texts` are replaced in
    commands.
    """

    def __init__(self, here: Path, texts: dict[str, str], **environment: str):
        (here / "bin").mkdir(parents=True)
        for folder in ("gitops", "values-examples"):
            (here / folder).symlink_to(REPO / folder)
        install(here / "bin", "jobgen")
        self.here, self.texts = here, texts
        person = {
            f"GIT_{who}_{what}": "test@example.com"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        self.environment = {**os.environ, **person, **environment}
        self.environment["PATH"] = f"{here}/bin:{self.environment['PATH']}"

    def follow(self, block: str) -> str:
        for old, new in self.texts.items():
            block = block.replace(old, new)
        command = ["bash", "-euo", "pipefail", "-c", block]
        done = ran(*command, cwd=self.here, env=self.environment, timeout=900)
        print(block, done.stdout, done.stderr)
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout
