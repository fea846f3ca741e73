"""Verdict of jobgen on every job group of a checkout, each run as its README says.

`python -m hack.upstream DIR [OPTION...]`, with options of jobgen for every group. The chart must render what jobgen
accepts.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from hack.paths import BIN, REPO, main

# What a test of the checkout gives to its templates; every other variable is empty.
VARIABLES = {"name": "group", "cloud": "kubernetes", "image_id": "docker:python:3.12", "delay": "10s"}
CHART = REPO / "charts/job-group"
OPTIONS = ("-n", "--name", "--env", "--secret")  # of sky, and the same of jobgen


def read(file: Path) -> str:
    """Return the file's text; of a template, with values in place of its variables."""
    text = file.read_text(errors="replace")
    return re.sub(r"\{\{\s*(\w+)[^{}]*\}\}", lambda found: VARIABLES.get(found[1], ""), text)


def is_group(file: Path) -> bool:
    """Whether a file has the header of a job group and a task."""
    try:
        documents = list(yaml.safe_load_all(read(file)))
    except yaml.YAMLError:
        return False  # such as templates with statements
    return len(documents) > 1 and isinstance(documents[0], dict) and documents[0].get("execution") == "parallel"


def invocation(root: Path, file: Path) -> tuple[Path, list[str]]:
    """Return the folder and the options of the command that launches the group, as it or a README shows it."""
    for folder in [file.parent, *file.parent.parents]:
        for page in [file, *sorted(folder.glob("README*"))]:
            text = page.read_text(errors="replace").replace("\\\n", " ")
            for line in re.findall(rf"sky jobs launch\b.*{re.escape(file.name)}.*", text):
                words = shlex.split(re.sub(r"[`'\"\\]", " ", line), comments=True)
                typed = next((word for word in words if word.endswith(file.name)), None)
                if typed is None:
                    continue
                words = [part for word in words for part in (word.split("=", 1) if word[:2] == "--" else [word])]
                pairs = list(itertools.pairwise(words))
                # The part of the path that was not typed is the folder in which it was typed.
                base = next((each for each in [*file.parents] if each / typed == file), folder)
                return base, [part for pair in pairs if pair[0] in OPTIONS for part in pair]
        if folder == root:
            break
    return root, []


DIAGNOSTIC = re.compile(r"^[^\n]*?:\d+:\d+: (error|warning|note)\[([a-z-]+)\]: (.*)$", re.MULTILINE)


def verdict(root: Path, file: Path, *more: str) -> str:
    base, options = invocation(root, file)
    text, source = read(file), str(file.relative_to(base))
    if text != file.read_text(errors="replace"):
        source = "-"  # a rendered template
    exported = {word: "x" for word in options if word.isidentifier()}  # --env NAME reads the environment
    environment = {**exported, **os.environ, "PYTHONPATH": str(REPO / "generator/src")}
    command = [sys.executable, "-m", "jobgen", "to-values", "--folder", "."]
    command += [*options, *more, source]
    done = subprocess.run(command, cwd=base, env=environment, input=text, capture_output=True, text=True)
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
    commit = subprocess.run(["git", "-C", root, "log", "-1", "--format=%h, %cs"], capture_output=True, text=True).stdout
    print(f"Commit {commit.strip() or 'unknown'}.\n\n| group | verdict |\n|---|---|")
    for file in sorted([*root.rglob("*.yaml"), *root.rglob("*.yml")]):
        if file.is_file() and is_group(file):
            print(f"| {file.relative_to(root)} | {verdict(root, file, *sys.argv[2:])} |", flush=True)


if __name__ == "__main__":
    main(entry)
