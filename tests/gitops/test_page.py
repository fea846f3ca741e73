"""docs/gitops.md, Argo CD: every command, in order, with the addresses of the test."""

import re

from tests.gitops import argo_cd
from tests.gitops.test_argo_cd import conditions
from tests.helpers.kube import Namespace
from tests.helpers.pages import Reader, blocks

APPLICATION = "group-first"


def test_the_page_leads_from_a_file_to_its_end(team, tmp_path):
    found = blocks("docs/gitops.md", "Argo CD")
    assert len(found) == 9
    texts = {"https://git.example.com/you/": team.addresses}
    environment = {
        **team.argo.environment,
        "PATH": f"{team.argo.binary.parent}:{team.argo.environment['PATH']}",
        "ARGOCD_BINARY_NAME": "argocd",
        "ARGOCD_SERVER": f"127.0.0.1:{team.argo.port}",
        "ARGOCD_OPTS": "--plaintext",
    }
    follow = Reader(tmp_path / "desk/reader", texts, **environment).follow
    space = Namespace(team.space.cluster, "groups")

    def names(kinds="jobsets"):
        return space.kubectl("get", kinds, "-o", "name")

    try:
        for block in found[:4]:
            follow(block)
        team.wait_for(APPLICATION, "groups")
        assert re.search(r"Health Status: +Healthy", follow(found[4]))
        first = names()
        follow(found[5])
        second = names()
        assert len(second.split()) == 1 and second != first
        assert (
            "ComparisonError" in follow(found[6])
            and conditions(team, APPLICATION)["ComparisonError"]
        )
        assert names() == second
        assert "ComparisonError" not in follow(found[7])
        assert names() == second
        follow(found[8])
        team.wait_for(APPLICATION, "groups", exists=False)
        kinds = "jobsets,jobs,pods,services,configmaps,networkpolicies"
        assert set(names(kinds).split()) <= {"configmap/kube-root-ca.crt"}
    finally:
        argo_cd.kubectl("delete", "applicationset", "groups", "--ignore-not-found")
        space.cluster.kubectl("delete", "namespace", "groups", "--ignore-not-found", "--wait=false")
