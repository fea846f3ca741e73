"""A job group that the project started from, as values. The other ones run in tests/e2e/test_group_plan.py."""

from jobgen.contract import VERSION


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
