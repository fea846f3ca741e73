"""docs/architecture.md names what a contributor looks for."""

import re

import pytest

from hack.paths import REPO
from tests.helpers.processes import ran

ARCHITECTURE = (REPO / "docs/architecture.md").read_text()
SOURCES = ("worker/src/gpuworker", "generator/src")
SECTION = ARCHITECTURE.partition("## Folders and their entry files")[2]


@pytest.mark.parametrize("root", SOURCES)
def test_every_source_folder_is_named_with_its_entry_file(root):
    folders = {path.parent for path in (REPO / root).rglob("*.py")} - {REPO / root}
    named = set(re.findall(r"`([\w/]+/)`", SECTION))
    missing = [
        each
        for each in folders
        if not {f"{each.relative_to(base)}/" for base in (REPO, REPO / root, each.parent)} & named
    ]
    assert missing == [], "add the folder and its entry file to docs/architecture.md"


def test_every_folder_of_the_repository_is_named():
    command = ("git", "-C", REPO, "ls-tree", "-d", "--name-only", "HEAD")
    found = ran(*command, check=True).stdout.split()
    assert len(found) > 8
    assert [each for each in found if each[0] != "." and f"`{each}/" not in SECTION] == ["docs"]
