"""An upgrade never ends a run because the chart is another one, and two runs of a release never
have pods at once.
"""

import json
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.helpers.kube import REPO, Namespace, wait_until
from tests.helpers.processes import ran

HELD = ["--set", "nodes=1"]


def upgrade(namespace: Namespace, chart: Path, *options: str) -> subprocess.CompletedProcess:
    image = namespace.cluster.helm_image()
    command = ["helm", "upgrade", "r", str(chart), "-n", namespace.name, *image, *HELD, *options]
    return ran(*command, timeout=120)


def pods(namespace: Namespace) -> list[tuple[str, bool]]:
    """Label of the run, and whether the pod is on a node and has not ended, of every pod that is
    there.
    """
    found = namespace.pods("r")
    ended = ("Succeeded", "Failed")
    return [
        (
            pod["metadata"]["labels"]["ddp-run/id"],
            "nodeName" in pod["spec"] and pod["status"]["phase"] not in ended,
        )
        for pod in found
    ]


def next_chart(folder: Path, patch: int = 0, changes_pods: bool = True) -> Path:
    chart = Path(shutil.copytree(REPO / "charts/ddp-run", folder / "ddp-run"))
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": f"9.9.{patch}"}))
    if changes_pods:
        common = chart / "templates/_common.tpl"
        common.write_text(
            common.read_text().replace("enableServiceLinks: false", "enableServiceLinks: true")
        )
    return chart


def test_a_run_goes_on_when_another_chart_would_change_its_pods(namespace, tmp_path):
    namespace.install("r", "ddp-run", *HELD)
    (before,) = namespace.objects("jobs")
    refused = upgrade(namespace, next_chart(tmp_path), "--set", "maxRestarts=1")
    assert refused.returncode and len(refused.stderr) < 500 and "runId" in refused.stderr, (
        refused.stderr
    )
    (after,) = namespace.objects("jobs")
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and after["spec"] == before["spec"]
    assert (
        upgrade(namespace, next_chart(tmp_path / "again"), "--set-string", "runId=2").returncode
        == 0
    )


def test_a_run_goes_on_over_ten_newer_charts(namespace, tmp_path):
    """Every other one would change its pods, and is refused."""
    namespace.install("r", "ddp-run", *HELD)
    wait_until(lambda: [each for each in pods(namespace) if each[1]], "a pod on a node")
    (before,) = namespace.pods("r")
    for number in range(10):
        changes_pods = number % 2 == 1
        done = upgrade(namespace, next_chart(tmp_path / str(number), number, changes_pods))
        assert bool(done.returncode) == changes_pods, done.stderr
    (after,) = namespace.pods("r")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert not any(each.get("restartCount") for each in after["status"]["containerStatuses"])


def test_two_runs_of_a_release_have_no_pods_on_nodes_at_once(namespace):
    namespace.install("r", "ddp-run", *HELD)
    wait_until(lambda: [each for each in pods(namespace) if each[1]], "a pod on a node")
    ((old, _),) = pods(namespace)
    assert upgrade(namespace, REPO / "charts/ddp-run", "--set", "maxRestarts=1").returncode == 0
    seen = []
    wait_until(
        lambda: seen.append(pods(namespace)) or (seen[-1] and old not in dict(seen[-1])),
        "the end of the old",
    )
    for state in seen:
        assert len({label for label, placed in state if placed}) < 2, json.dumps(seen)
    namespace.helm("uninstall", "r")
