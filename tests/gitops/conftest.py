"""Argo CD on the cluster of KUBECONFIG, for tests that ask for it. They never skip."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from tests.gitops import argo_cd
from tests.gitops.argo_cd import ArgoCD
from tests.helpers.failure_dump import pytest_runtest_makereport as pytest_runtest_makereport
from tests.helpers.git_runs import GitRuns, mirrored, repositories
from tests.helpers.kube import Cluster, given_cluster, wait_until


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return given_cluster("test-argocd")


@pytest.fixture(scope="session")
def argo(cluster, tmp_path_factory) -> Iterator[ArgoCD]:
    folder = tmp_path_factory.mktemp("argocd")
    with argo_cd.running(folder, mirrored(cluster, folder)) as found:
        yield found


@dataclass
class Team(GitRuns):
    argo: ArgoCD

    def apply(self, manifest: str, *settings: dict) -> str:
        """Apply a file of gitops/argocd with the values that its reader sets; return the object's
        name.
        """
        found = yaml.safe_load(self.manifest(argo_cd.SETTINGS / manifest))
        found["metadata"]["name"] += f"-{self.space.name}"
        template = found["spec"].get("template")
        spec = template["spec"] if template else found["spec"]
        if template:
            template["metadata"]["name"] += f"-{self.space.name}"
        spec["destination"]["namespace"] = self.space.name
        for setting in settings:
            spec["syncPolicy"]["automated"].update(setting)
        argo_cd.kubectl("apply", "-f", "-", input=yaml.safe_dump(found))
        return found["metadata"]["name"]

    def wait_for(self, application: str, groups: str, exists: bool = True):
        """Wait until the ApplicationSet `groups` has made or removed the Application."""

        def found():
            # Asked again each time: an answer from Argo CD's cache of commits may precede the
            # newest one.
            mark = ("argocd.argoproj.io/application-set-refresh=true", "--overwrite")
            argo_cd.kubectl("annotate", "applicationset", groups, *mark)
            return (self.argo.application(application, refresh="") is not None) == exists

        wait_until(found, f"{application} {'exists' if exists else 'is gone'}")


@pytest.fixture
def team(argo, cluster, tmp_path) -> Iterator[Team]:
    with repositories(cluster, tmp_path, {}) as found:
        space = found.space
        try:
            yield Team(space, found.charts, found.runs, argo)
        finally:
            for kind in ("applicationsets", "applications"):
                names = argo_cd.kubectl("get", kind, "-o", "name").split()
                if mine := [name for name in names if name.endswith(space.name)]:
                    argo_cd.kubectl("delete", "--timeout=200s", *mine)
