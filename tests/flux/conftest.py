"""Flux on the cluster of KUBECONFIG, for tests that ask for it. They never skip."""

import json
import textwrap
import time
from collections.abc import Iterator

import pytest

from tests.flux import flux
from tests.helpers.failure_dump import pytest_runtest_makereport as pytest_runtest_makereport
from tests.helpers.git_runs import GitRuns, repositories
from tests.helpers.kube import Cluster, given_cluster, wait_until

KINDS = (
    "kustomizations",
    "helmreleases",
    "helmcharts",
    "gitrepositories",
)  # in the order of their removal


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return given_cluster("test-flux")


@pytest.fixture(scope="session")
def controllers(cluster, tmp_path_factory):
    with flux.running(tmp_path_factory.mktemp("flux")):
        yield


class Team(GitRuns):
    def start(self, chart: str, name: str, values: str):
        """Commit a run, and apply gitops/flux/runs.yaml with what its reader sets, in the namespace
        of this test.
        """
        self.commit(chart, name, values)
        text = self.manifest(flux.SETTINGS / "runs.yaml").replace(
            "amespace: runs", f"amespace: {self.space.name}"
        )
        _, _, rest = text.partition("---\n")  # the namespace is there
        self.space.apply(rest)

    def commit(self, chart: str, name: str, values: str):
        """A file of the folder runs/, made as docs/gitops.md shows."""
        text = (flux.SETTINGS / f"{chart}.yaml").read_text().replace("NAME", name)
        self.runs.commit({f"runs/{name}.yaml": text + textwrap.indent(values, "    ")})

    def status(self, kind: str, name: str) -> dict:
        found = self.space.kubectl("get", kind, name, "--ignore-not-found", "--output=json")
        return json.loads(found).get("status", {}) if found.strip() else {}

    def reconcile(self, kind: str, name: str) -> dict:
        """The status after a reconciliation that was asked for."""
        stamp = str(time.time_ns())
        self.space.kubectl(
            "annotate", kind, name, f"reconcile.fluxcd.io/requestedAt={stamp}", "--overwrite"
        )

        def handled():
            status = self.status(kind, name)
            return status if status.get("lastHandledReconcileAt") == stamp else None

        return wait_until(handled, f"Flux has reconciled {kind} {name}")

    def pull(self):
        """Bring the newest commit to the cluster."""
        source = self.reconcile("gitrepository", "runs")
        revision = source["artifact"]["revision"]
        wait_until(
            lambda: (
                self.reconcile("kustomization", "runs").get("lastAttemptedRevision") == revision
            ),
            f"Flux has applied {revision}",
        )

    def again(self, name: str, times: int = 1):
        """Reconcile all that leads to this HelmRelease."""
        for _ in range(times):
            self.pull()
            self.reconcile("helmrelease", name)

    def ready(self, name: str, wanted: str = "True", deadline_s: float = 120) -> str:
        """Wait until the newest content of the HelmRelease has this condition; return the message."""

        def found():
            release = json.loads(self.space.kubectl("get", "helmrelease", name, "--output=json"))
            seen[:] = release.get("status", {}).get("conditions", [])
            newest = [
                each
                for each in seen
                if each.get("observedGeneration") == release["metadata"]["generation"]
            ]
            each = [one for one in newest if (one["type"], one["status"]) == ("Ready", wanted)]
            return each[0]["message"] if each else None

        seen: list[dict] = []
        try:
            return wait_until(found, f"HelmRelease {name} has Ready={wanted}", deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(seen, indent=1)}") from None


@pytest.fixture
def team(controllers, cluster, tmp_path) -> Iterator[Team]:
    with repositories(cluster, tmp_path, {"runs/.keep": ""}) as found:
        try:
            yield Team(found.space, found.charts, found.runs)
        finally:
            for kind in KINDS:
                found.space.kubectl("delete", kind, "--all", "--timeout=120s")
