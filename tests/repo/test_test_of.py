"""`make test-of` finds tests of every source."""

import pytest

from hack import test_of
from hack.paths import REPO
from tests.helpers.processes import ran

ROOTS = ("charts/shared", "generator/src", "gitops", "hack", "monitoring", "schemas", "worker")
LISTED = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
SOURCES = ran(*LISTED, *ROOTS, cwd=REPO, check=True).stdout.split()


def test_every_source_has_tests():
    assert [path for path in SOURCES if not test_of.tests(path)] == []


@pytest.mark.parametrize(
    ("path", "test"),
    {
        "worker/src/gpuworker/accept/checks/environment.py": "tests/worker/test_check_environment.py",
        "worker/src/gpuworker/fleet/formats/page.js": "tests/browser/test_fleet_page.py",
        "worker/src/gpuworker/launch/local_ranks.py": "tests/worker/test_launch_faults.py",
        "worker/src/gpuworker/train/callbacks/tracking.py": "tests/tracking/test_trackers.py",
        "generator/src/kubectl_runs/remedies.py": "tests/generator/test_runs_judge.py",
        "generator/src/jobgen/convert.py": "tests/generator/test_jobgen_fields.py",
        "monitoring/alerts.yaml": "tests/package/test_monitoring.py",
        "gitops/argocd/health/batch/Job/health.lua": "tests/gitops/test_health.py",
        "schemas/jobgroup/task.yaml": "tests/generator/test_jobgen_schemas.py",
    }.items(),
)
def test_a_source_has_the_tests_that_prove_it(path, test):
    assert (REPO / path).is_file()
    assert test in test_of.tests(path)


def test_every_folder_of_tests_is_run_by_something():
    commands = "".join((REPO / name).read_text() for name in ("hack/test.py", "Makefile"))
    folders = {path.parent.name for path in (REPO / "tests").rglob("test_*.py")}
    assert len(folders) > 10
    assert [name for name in folders if f"tests/{name}" not in commands] == []
