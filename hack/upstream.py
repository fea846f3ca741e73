"""Verdict of jobgen on every job group of a checkout, each run as its README says: python -m hack.upstream DIR."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from hack.paths import REPO, main


def is_group(file: Path) -> bool:
    """Whether a file has the header of a job group and a task."""
    try:
        documents = list(yaml.safe_load_all(file.read_text(errors="replace")))
    except yaml.YAMLError:
        return False  # such as templates
    return len(documents) > 1 and isinstance(documents[0], dict) and documents[0].get("execution") == "parallel"


def invocation(root: Path, file: Path) -> tuple[Path, list[str]]:
    """Return the folder and the options of the command that launches the group, as it or a README shows it."""
    for folder in [file.parent, *file.parent.parents]:
        for page in [file, *sorted(folder.glob("README*"))]:
            text = page.read_text(errors="replace").replace("\\\n", " ")
            for line in re.findall(rf"sky jobs launch\b.*{re.escape(file.name)}.*", text):
                typed = next(word.strip("`'\"") for word in line.split() if file.name in word)
                options = re.findall(r"--(?:env|secret)[ =]\S+", line)
                # The part of the path that was not typed is the folder in which it was typed.
                base = next((each for each in [*file.parents] if each / typed == file), folder)
                return base, [word for option in options for word in re.split("[ =]", option, maxsplit=1)]
        if folder == root:
            break
    return root, []


def verdict(root: Path, file: Path) -> str:
    base, options = invocation(root, file)
    words = ["-m", "jobgen", "validate", "--format", "json", *options, str(file.relative_to(base))]
    environment = {"PYTHONPATH": str(REPO / "generator/src"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, *words], cwd=base, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return "accepted"
    found = [each for each in yaml.safe_load(done.stdout or "[]") if each["severity"] == "error"]
    errors = [f"{each['code']}: {each['message']}" for each in found] or [done.stderr.strip()]
    return "refused: " + "<br>".join(each.replace("|", "\\|") for each in dict.fromkeys(errors))


def entry() -> None:
    root = Path(sys.argv[1]).resolve()
    commit = subprocess.run(["git", "-C", root, "log", "-1", "--format=%h, %cs"], capture_output=True, text=True).stdout
    print(f"Commit {commit.strip() or 'unknown'}.\n\n| group | verdict |\n|---|---|")
    for file in sorted([*root.rglob("*.yaml"), *root.rglob("*.yml")]):
        if file.is_file() and is_group(file):
            print(f"| {file.relative_to(root)} | {verdict(root, file)} |", flush=True)


if __name__ == "__main__":
    main(entry)
