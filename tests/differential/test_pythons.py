"""Equal output on every supported Python. Versions that are not installed are skipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hack.deps.venv import VENV
from hack.paths import CACHE, REPO, built_once, run
from tests.differential import groups, table
from tests.differential.cases import files

SEEDS = REPO / "tests" / "generator" / "seeds"
PROGRAM = """
import json, sys
from jobgen.api import Options, to_values
results = [to_values(text.encode("utf-8", "surrogatepass"), Options()) for text in json.load(sys.stdin)]
json.dump([sys.version_info[:2], [(result.text, result.diagnostics) for result in results]], sys.stdout)
"""


def texts() -> list[str]:
    seeds = [file.read_text() for file in sorted(SEEDS.glob("*.yaml"))]
    return seeds + [entry.text for entry in table.TABLE] + [groups.make(f"python-{number}") for number in range(500)]


def interpreter(version: str) -> str | None:
    """Find a Python on the PATH or in pyenv, whose commands fail for versions that are not active."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for command in (shutil.which(f"python{version}"), *installed):
        if command and not subprocess.run([command, "-c", ""], capture_output=True).returncode:
            return str(command)
    return None


def packages(version: str) -> Path:
    """Install PyYAML for this Python, at the version of requirements/dev.txt."""
    target = CACHE / f"pyyaml-{version}"
    pinned = (REPO / "requirements" / "dev.txt").read_text().partition("\npyyaml==")[2].partition("    # via")[0]
    if not (target / pinned.split()[0]).exists():
        with built_once(target) as scratch:
            scratch.mkdir()
            (scratch / "requirements.txt").write_text("pyyaml==" + pinned.rstrip().rstrip("\\") + "\n")
            options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version", version)
            run(VENV / "bin" / "pip", "install", *options, "--target", scratch, "-r", scratch / "requirements.txt")
            (scratch / pinned.split()[0]).touch()
    return target


def results(folder: Path, command: str, packages: Path | None = None) -> list:
    paths = [str(REPO / "generator" / "src"), *([str(packages)] if packages else [])]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [command, "-c", PROGRAM],
        cwd=folder,
        env=environment,
        input=json.dumps(texts()),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("pythons")
    files(made)
    return made


@pytest.fixture(scope="module")
def expected(folder) -> list:
    _, found = results(folder, sys.executable)
    assert sum(text is not None for text, _ in found) > 100
    return found


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_python(version, folder, expected):
    command = interpreter(version)
    if not command:
        pytest.skip(f"Python {version} is not installed")
    (major, minor), found = results(folder, command, packages(version))
    assert f"{major}.{minor}" == version
    assert found == expected
