"""Command blocks of the pages for users: each command is executed or checked by a test, or marked
in the text.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from hack.paths import REPO
from tests.generator.test_jobgen_docs import COMMANDS as OF_JOBGEN
from tests.helpers.pages import code
from tests.helpers.rendering import parts
from tests.repo.test_readme import as_rendered, installs

FOLDERS = ("README.md", "docs/*.md", "charts/*/README.md", "values-examples/*/README.md")
PAGES = [page for pattern in FOLDERS for page in sorted(REPO.glob(pattern))]
MARK = "not run"
# Pages of which every command runs on a cluster: in tests/e2e (readme_commands, examples),
# tests/gitops and tests/flux.
EXAMPLES = ("rl", "train-eval", "service-clients", "parameter-sweep")
ON_A_CLUSTER = {
    "README.md",
    "docs/gitops.md",
    *(f"values-examples/{name}/README.md" for name in EXAMPLES),
}


def name(page: Path) -> str:
    return str(page.relative_to(REPO))


def commands(block: str) -> Iterator[tuple[str, bool]]:
    """Each command, without its comment, and whether it is marked: in its line, or in a comment
    line above.
    """
    above = False
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("#"):
            above = above or MARK in line.lower()
        elif line:
            command, _, comment = line.partition("   #")
            yield command.strip(), above or MARK in comment.lower()


BLOCKS = [(page, text) for page in PAGES for text in code(page.read_text())]


@cache
def objects(page: Path) -> list[dict]:
    """What the installations of the page create, pods included, with their labels."""
    found = []
    for command in installs(page):
        done = as_rendered(page, command)
        found += [each for each in yaml.safe_load_all(done.stdout) if each]
    return found


def labels(value: object) -> list[dict]:
    """Labels of an object and of every pod template inside it."""
    found = [each.get("metadata") for each in parts(value)]
    return [each.get("labels") or {} for each in found if isinstance(each, dict)]


def selects(page: Path, command: str) -> bool | None:
    """Whether the objects that the command names are in the rendered installations; None if it
    names none.
    """
    if selector := re.search(r" -l (\S+)", command):
        wanted = dict(pair.split("=") for pair in selector[1].split(","))
        return any(wanted.items() <= each.items() for each in labels(objects(page)))
    if named := re.search(r" (deployment|service|job|jobset)/(\S+)", command):
        return any(
            (each["kind"].lower(), each["metadata"]["name"]) == named.groups()
            for each in objects(page)
        )
    if release := re.match(r"helm (?:test|uninstall) (\S+)", command):
        return any(f"helm install {release[1]} " in each for each in installs(page))
    return None


def fate(page: Path, command: str, marked: bool) -> str:
    if marked:
        return "marked"
    if name(page) in ON_A_CLUSTER:
        return "executed"
    if "helm install " in command or (
        name(page) == "docs/jobgen.md" and command in OF_JOBGEN_LINES
    ):
        return "executed"
    return "checked" if selects(page, command) else "neither"


OF_JOBGEN_LINES = {line.partition("   #")[0].strip() for line in OF_JOBGEN}


def fates(page: Path, block: str) -> list[tuple[str, str]]:
    return [(command, fate(page, command, marked)) for command, marked in commands(block)]


@pytest.mark.parametrize("page", sorted({page for page, _ in BLOCKS}), ids=name)
def test_every_command_is_executed_or_checked_or_marked(page):
    """Executed: on a cluster, or with `helm template` in place of `helm install`. Checked: what it
    names exists.
    """
    found = [each for owner, block in BLOCKS if owner == page for each in fates(page, block)]
    assert [command for command, what in found if what == "neither"] == []


def test_a_group_of_jobs_is_waited_for_as_its_notes_say():
    """charts/job-group/tests/notes_test.yaml has the selector of the notes."""
    (row,) = [
        line
        for line in (REPO / "docs/operate.md").read_text().splitlines()
        if "`workload: jobs` |" in line
    ]
    assert (
        " -l 'job-group/name=GROUP,job-group/task in (TASK,TASK)' --for=condition=Complete " in row
    )
