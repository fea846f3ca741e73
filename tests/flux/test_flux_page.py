"""docs/gitops.md, Flux: every command, in order, with the addresses of the test."""

from tests.flux.conftest import KINDS
from tests.helpers.kube import Namespace, wait_until
from tests.helpers.pages import Reader, blocks

LEFT = "helmreleases,jobsets,jobs,pods,services,configmaps,networkpolicies,secrets"


def test_the_page_leads_from_a_file_to_its_end(team, tmp_path):
    found = blocks("docs/gitops.md", "Flux")
    assert len(found) == 8
    texts = {"https://git.example.com/you/": team.addresses}
    reader = Reader(tmp_path / "desk/reader", texts)
    space = Namespace(team.space.cluster, "runs")

    def names(kinds="jobsets"):
        return space.kubectl("get", kinds, "-o", "name")

    try:
        for block in found[:4]:
            reader.follow(block)
        first = names()
        assert len(first.split()) == 1
        reader.follow(found[4])
        wait_until(lambda: len(names().split()) == 1 and names() != first, "the second run")
        second = names()
        assert "workload" in reader.follow(found[5])
        reader.follow(found[6])
        space.kubectl("wait", "helmrelease/first", "--for=condition=Ready", "--timeout=180s")
        assert names() == second
        reader.follow(found[7])
        wait_until(lambda: not names("helmreleases"), "it is gone")
        assert set(names(LEFT).split()) <= {"configmap/kube-root-ca.crt"}
    finally:
        for kind in KINDS:
            space.kubectl("delete", kind, "--all", "--timeout=120s")
        space.cluster.kubectl("delete", "namespace", "runs", "--ignore-not-found", "--wait=false")
