"""docs/argo-cd.md: every command, in order, with the addresses of the test."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.gitops import argo_cd
from tests.gitops.conftest import Team
from tests.gitops.test_argo_cd import conditions
from tests.helpers.kube import REPO

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
APPLICATION, NAMESPACE = "group-first", "groups"


def test_the_page_leads_from_a_file_to_its_end(team: Team, tmp_path) -> None:
    blocks = BLOCK.findall((REPO / "docs/argo-cd.md").read_text())
    assert len(blocks) == 9
    here = tmp_path / "reader"
    (here / "bin").mkdir(parents=True)
    for folder in ("gitops", "values-examples"):
        (here / folder).symlink_to(REPO / folder)
    installed = here / "bin/jobgen"
    installed.write_text(f'#!/bin/sh\nPYTHONPATH={REPO}/generator/src exec {sys.executable} -m jobgen "$@"\n')
    installed.chmod(0o755)
    image = team.space.cluster.image.rpartition(":")
    texts = {
        "https://git.example.com/you/": team.runs.url.removesuffix("runs.git"),
        "registry.example.com/you/gpu-worker": image[0],
        "applicationset-groups.yaml |": f'applicationset-groups.yaml | sed \'s|"0.1.0"|"{image[2]}"|\' |',
    }
    environment = {
        **team.argo.environment,
        "PATH": f"{here}/bin:{team.argo.binary.parent}:{team.argo.environment['PATH']}",
        "ARGOCD_BINARY_NAME": "argocd",
        "ARGOCD_SERVER": f"127.0.0.1:{team.argo.port}",
        "ARGOCD_OPTS": "--plaintext",
        **{f"GIT_{who}_{what}": "test@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }

    def follow(block: str) -> str:
        for old, new in texts.items():
            block = block.replace(old, new)
        command = ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=900)
        print(block, done.stdout, done.stderr)
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    kubectl = team.space.cluster.kubectl
    try:
        for block in blocks[:4]:
            follow(block)
        team.wait_for(APPLICATION, "groups")
        assert re.search(r"Health Status: +Healthy", follow(blocks[4]))
        first = kubectl("--namespace", NAMESPACE, "get", "jobsets", "-o", "name")
        follow(blocks[5])
        second = kubectl("--namespace", NAMESPACE, "get", "jobsets", "-o", "name")
        assert len(second.split()) == 1 and second != first
        assert "ComparisonError" in follow(blocks[6]) and conditions(team, APPLICATION)["ComparisonError"]
        assert kubectl("--namespace", NAMESPACE, "get", "jobsets", "-o", "name") == second
        assert "ComparisonError" not in follow(blocks[7])
        assert kubectl("--namespace", NAMESPACE, "get", "jobsets", "-o", "name") == second
        follow(blocks[8])
        team.wait_for(APPLICATION, "groups", exists=False)
        kinds = "jobsets,jobs,pods,services,configmaps"
        left = kubectl("--namespace", NAMESPACE, "get", kinds, "-o", "name").split()
        assert set(left) <= {"configmap/kube-root-ca.crt"}
    finally:
        kubectl("--namespace", argo_cd.NAMESPACE, "delete", "applicationset", "groups", "--ignore-not-found")
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
