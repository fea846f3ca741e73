"""docs/gitops.md, Flux: every command, in order, with the addresses of the test."""

from __future__ import annotations

from tests.flux.conftest import KINDS, Team
from tests.helpers.kube import wait_until
from tests.helpers.pages import Reader, blocks

NAMESPACE = "runs"
LEFT = "helmreleases,jobsets,jobs,pods,services,configmaps,networkpolicies,secrets"


def test_the_page_leads_from_a_file_to_its_end(team: Team, tmp_path) -> None:
    found = blocks("docs/gitops.md", "Flux")
    assert len(found) == 8
    texts = {"https://git.example.com/you/": team.addresses}
    reader = Reader(tmp_path / "desk/reader", texts)
    kubectl = team.space.cluster.kubectl

    def jobsets() -> str:
        return kubectl("--namespace", NAMESPACE, "get", "jobsets", "-o", "name")

    try:
        for block in found[:4]:
            reader.follow(block)
        first = jobsets()
        assert len(first.split()) == 1
        reader.follow(found[4])
        wait_until(lambda: len(jobsets().split()) == 1 and jobsets() != first, "the second run")
        second = jobsets()
        assert "workload" in reader.follow(found[5])
        reader.follow(found[6])
        kubectl(
            "--namespace",
            NAMESPACE,
            "wait",
            "helmrelease",
            "first",
            "--for=condition=Ready",
            "--timeout=180s",
        )
        assert jobsets() == second
        reader.follow(found[7])
        wait_until(
            lambda: not kubectl("--namespace", NAMESPACE, "get", "helmreleases", "-o", "name"),
            "it is gone",
        )
        left = kubectl("--namespace", NAMESPACE, "get", LEFT, "-o", "name").split()
        assert set(left) <= {"configmap/kube-root-ca.crt"}
    finally:
        for kind in KINDS:
            kubectl("--namespace", NAMESPACE, "delete", kind, "--all", "--timeout=120s")
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
