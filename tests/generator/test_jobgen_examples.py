"""values-examples: each values.yaml is the output of jobgen for its group.yaml."""

from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "values-examples").glob("*/group.yaml"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("group", EXAMPLES, ids=lambda path: path.parent.name)
def test_values_are_up_to_date(jobgen, group):
    result = jobgen("to-values", group, "--check", group.with_name("values.yaml"))
    assert result.exit_code == 0, result.stderr
    assert group.with_name("README.md").exists()
