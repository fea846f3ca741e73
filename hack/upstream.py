"""Verdict of jobgen on every job group of a checkout, each in its own folder or in that of the
checkout.

`python -m hack.upstream DIR [OPTION...]`, with options of jobgen for every group. A variable
without a value gets one. The chart must render what jobgen accepts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from hack.paths import BIN, REPO, main

# What a test of the checkout gives to its templates; every other variable is empty.
VARIABLES = {
    "name": "group",
    "cloud": "kubernetes",
    "image_id": "docker:python:3.12",
    "delay": "10s",
}
CHART = REPO / "charts/job-group"
DIAGNOSTIC = re.compile(r"^[^\n]*?:\d+:\d+: (error|warning|note)\[([a-z-]+)\]: (.*)$", re.MULTILINE)


def read(file: Path) -> str:
    """Return the file's text; of a template, with values in place of its variables."""
    text = file.read_text(errors="replace")
    return re.sub(r"\{\{\s*(\w+)[^{}]*\}\}", lambda found: VARIABLES.get(found[1], ""), text)


def documents(file: Path) -> list[dict]:
    """The header and the tasks of a job group; none of another file."""
    try:
        found = [each for each in yaml.safe_load_all(read(file)) if each]
    except yaml.YAMLError:
        return []  # such as templates with statements
    is_group = (
        len(found) > 1 and isinstance(found[0], dict) and found[0].get("execution") == "parallel"
    )
    return found if is_group else []


def verdict(root: Path, file: Path, *more: str) -> str:
    """Where the group's paths do not exist in its own folder, it was written for that of the
    checkout.
    """
    given = [
        each["envs"]
        for each in documents(file)[1:]
        if isinstance(each, dict) and isinstance(each.get("envs"), dict)
    ]
    empty = dict.fromkeys(name for envs in given for name, value in envs.items() if value is None)
    # Also one that looks like a credential by its name: its value here is none.
    options = [*more, *(word for name in empty for word in ("--env", f"{name}=x", "--allow", name))]
    found = [verdict_in(folder, file, options) for folder in dict.fromkeys((file.parent, root))]
    return next((each for each in found if each.startswith("accepted")), found[-1])


def verdict_in(folder: Path, file: Path, options: list[str]) -> str:
    command = [sys.executable, "-m", "jobgen", "to-values", "--folder", ".", *options, "-"]
    environment = {**os.environ, "PYTHONPATH": str(REPO / "generator/src")}
    done = subprocess.run(
        command, cwd=folder, env=environment, input=read(file), capture_output=True, text=True
    )
    found = DIAGNOSTIC.findall(done.stderr)
    errors = [f"{code}: {message}" for severity, code, message in found if severity == "error"]
    if done.returncode:
        errors = errors or [" ".join(done.stderr.split())]
        return "refused: " + "<br>".join(each.replace("|", "\\|") for each in dict.fromkeys(errors))
    image = ("--set", "image.repository=registry.example.com/gpu-worker")
    helm = [shutil.which("helm") or BIN / "helm", "template", "x", CHART, "-f", "-", *image]
    rendered = subprocess.run(helm, input=done.stdout, capture_output=True, text=True)
    if rendered.returncode:
        return f"accepted, but the chart refuses it: {' '.join(rendered.stderr.split())[:300]}"
    warnings = dict.fromkeys(code for severity, code, _ in found if severity == "warning")
    return f"accepted, with warnings: {', '.join(warnings)}" if warnings else "accepted"


def entry() -> None:
    root = Path(sys.argv[1]).resolve()
    commit = subprocess.run(
        ["git", "-C", root, "log", "-1", "--format=%h, %cs"], capture_output=True, text=True
    ).stdout
    print(f"Commit {commit.strip() or 'unknown'}.\n\n| group | verdict |\n|---|---|")
    for file in sorted([*root.rglob("*.yaml"), *root.rglob("*.yml")]):
        if file.is_file() and documents(file):
            print(
                f"| {file.relative_to(root)} | {verdict(root, file, *sys.argv[2:])} |", flush=True
            )


if __name__ == "__main__":
    main(entry)
