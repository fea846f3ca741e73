"""Health scripts of gitops/argocd, evaluated by Argo CD over statuses of Jobs and JobSets: make
test-argocd.
"""

from pathlib import Path

import pytest
import yaml

from tests.helpers.kube import REPO, run

ARGOCD = REPO / "gitops/argocd"
SUITES = sorted((ARGOCD / "health").glob("*/*/health_test.yaml"))
CASES = [
    pytest.param(suite.parent / path, case["healthStatus"], id=f"{suite.parent.name}-{path}")
    for suite in SUITES
    for case in yaml.safe_load(suite.read_text())["tests"]
    for path in [case["inputPath"]]
]


def assess(status: Path, settings: Path) -> dict[str, str]:
    command = ("argocd", "admin", "settings", "resource-overrides", "health", str(status))
    printed = run(*command, "--argocd-cm-path", str(settings))
    found = dict(
        line.split(": ", 1)
        for line in printed.splitlines()
        if line.startswith(("STATUS: ", "MESSAGE: "))
    )
    return {"status": found["STATUS"], "message": found["MESSAGE"]}


@pytest.mark.parametrize(("status", "expected"), CASES)
def test_a_status_has_its_health(status, expected):
    assert assess(status, ARGOCD / "argocd-cm.yaml") == expected


def test_every_recorded_status_is_tested():
    tested = {case.values[0] for case in CASES}
    recorded = set((ARGOCD / "health").glob("*/*/testdata/*.yaml"))
    assert tested == recorded and len(tested) >= 20


def test_argo_cd_itself_takes_an_admitted_job_for_a_finished_one(tmp_path):
    """When this fails, Argo CD has mended its health of Jobs, and ours can go."""
    settings = yaml.safe_load((ARGOCD / "argocd-cm.yaml").read_text())
    settings["data"] = {}
    plain = tmp_path / "argocd-cm.yaml"
    plain.write_text(yaml.safe_dump(settings))
    assert (
        assess(ARGOCD / "health/batch/Job/testdata/running_after_kueue.yaml", plain)["status"]
        == "Healthy"
    )
