"""The job groups that the project started from, unchanged from their authors."""

import pytest
import yaml

from jobgen.contract import VERSION
from tests.generator.diagnostic_lines import brief


def values(result):
    assert result.exit_code == 0, result.stderr
    return yaml.safe_load(result.stdout)


@pytest.mark.parametrize(
    ("file", "name", "nodes"),
    [
        ("test_jobgroup_valid.yaml", "test-group", {"job-a": 1, "job-b": 1}),
        ("test_job_group.yaml", "test-job-group", {"job-a": 1, "job-b": 1}),
        ("k8s_networking_test.yaml", "k8s-network-test", {"server": 1, "client": 1}),
        ("k8s_multinode_test.yaml", "k8s-multinode-group", {"workers": 2, "coordinator": 1}),
    ],
)
def test_group_becomes_values(jobgen, seeds, file, name, nodes):
    got = values(jobgen("to-values", seeds / file))
    assert (got["schemaVersion"], got["name"]) == (1, name)
    assert {task: value["numNodes"] for task, value in got["tasks"].items()} == nodes
    assert list(got["tasks"]) == list(nodes)  # in the order of the file
    for value, source in zip(
        got["tasks"].values(), list(yaml.safe_load_all((seeds / file).read_text()))[1:], strict=True
    ):
        assert value["resources"] == {"requests": {"cpu": "2"}}
        assert value["run"] == source["run"]


def test_minimal_group_has_this_text(jobgen, seeds):
    """The whole file, so that a change of its form is a decision."""
    result = jobgen("to-values", seeds / "test_jobgroup_valid.yaml")
    assert result.stdout == (
        f"# Values of the chart job-group, written by jobgen {VERSION}. Change the source, not this file.\n"
        "# Source: sha256 2356d97346f30f000de042e937b6e25909a8f3570b49e8df6d5915b4b2d24cca\n"
        "name: test-group\n"
        "tasks:\n"
        "  job-a:\n"
        "    numNodes: 1\n"
        "    resources:\n"
        "      requests:\n"
        '        cpu: "2"\n'
        "    run: |-\n"
        '      echo "Job A"\n'
        "  job-b:\n"
        "    numNodes: 1\n"
        "    resources:\n"
        "      requests:\n"
        '        cpu: "2"\n'
        "    run: |-\n"
        '      echo "Job B"\n'
        "schemaVersion: 1\n"
    )


def test_name_changes_the_name_only(jobgen, seeds):
    first, second = (
        values(jobgen("to-values", seeds / "test_job_group.yaml", "--name", name)) for name in ("group-1", "group-2")
    )
    assert (first.pop("name"), second.pop("name")) == ("group-1", "group-2")
    assert first == second


def test_duplicate_job_names_are_refused(jobgen, seeds):
    file = seeds / "k8s_duplicate_names.yaml"
    result = jobgen("validate", file)
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if ": error[" in line]
    assert line.startswith(f'{file}:12:7: error[duplicate-task]: task "my-job": $.name: Duplicate job name "my-job"')
    assert "line 6" in line and "[duplicate-task]: " in line


@pytest.mark.parametrize(
    ("old", "new", "expected", "words"),
    [
        ("name: job-a\n", "", "6:1 $ missing-field", 'must have a "name" field'),
        ("name: job-b", "name: job-a", "11:7 $.name duplicate-task", 'Duplicate job name "job-a"'),
        ("SAME_INFRA", "INVALID", "3:12 $.placement bad-value", 'Invalid placement mode "INVALID"'),
    ],
)
def test_edge_case_is_refused(errors, seeds, old, new, expected, words):
    """The words are those of SkyPilot, which scripts may look for."""
    text = (seeds / "test_jobgroup_valid.yaml").read_text()
    assert old in text
    (line,) = errors(text.replace(old, new, 1))
    assert brief(line) == expected and words in line


def test_a_group_of_one_task_is_accepted(jobgen, seeds):
    text = (seeds / "test_jobgroup_valid.yaml").read_text()
    assert list(values(jobgen("to-values", "-", stdin=text[: text.rindex("---")]))["tasks"]) == ["job-a"]
