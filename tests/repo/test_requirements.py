"""The locked requirements install on any machine: pinned with hashes, from the index that its user
has set.
"""

import re

import pytest

from hack.paths import REPO


@pytest.mark.parametrize(
    "path", sorted((REPO / "requirements").glob("*.txt")), ids=lambda path: path.name
)
def test_locked_requirements_name_packages_only(path):
    lines = [
        line for line in path.read_text().splitlines() if line and not line.startswith((" ", "#"))
    ]
    assert lines and all(re.match(r"[\w.\[\],-]+==\S+ ", f"{line} ") for line in lines), path
