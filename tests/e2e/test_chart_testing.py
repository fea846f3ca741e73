"""`ct install --upgrade` with every chart: installation, upgrade from the last version, `helm
test`.
"""

import shutil
from pathlib import Path

import pytest
import yaml

from hack.deps import go_tools
from tests.helpers.kube import REPO, run
from tests.helpers.processes import ran
from tests.helpers.rendering import CHARTS

# For a cluster without GPUs: ct waits until pods are ready, and those of charts/*/ci need GPUs,
# claims and node pools.
VALUES = {
    "ddp-run": {"env": {"OMP_NUM_THREADS": "1"}},
    "gpu-accept": {
        "device": "cpu",
        "checks": ["environment"],
        "nodeSelector": {"kubernetes.io/os": "linux"},
    },
    "job-group": {
        "schemaVersion": 1,
        "name": "pair",
        "tasks": {"a": {"run": "sleep 5"}, "b": {"run": "sleep 5"}},
    },
}


def repository(folder: Path, values: dict[str, dict]):
    """A git repository of two versions: the older one is the branch main of its remote."""

    def git(*words):
        run(
            "git",
            "-C",
            str(folder),
            "-c",
            "user.name=test",
            "-c",
            "user.email=test@example.com",
            *words,
        )

    def commit(version):
        for chart in CHARTS:
            about = folder / "charts" / chart / "Chart.yaml"
            text = about.read_text()
            old = yaml.safe_load(text)["version"]
            about.write_text(text.replace(f"\nversion: {old}\n", f"\nversion: {version}\n"))
            assert yaml.safe_load(about.read_text())["version"] == version
        git("add", "--all")
        git("commit", "--quiet", "--message", version)

    for chart in CHARTS:
        shutil.copytree(
            REPO / "charts" / chart, folder / "charts" / chart, ignore=shutil.ignore_patterns("ci")
        )
        (folder / "charts" / chart / "ci").mkdir()
        (folder / "charts" / chart / "ci/test-values.yaml").write_text(
            yaml.safe_dump(values[chart])
        )
    run("git", "init", "--quiet", "--initial-branch=change", str(folder))
    git("remote", "add", "origin", "https://git.example.com/charts.git")
    commit("1.0.0")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    commit("1.0.1")


@pytest.mark.lifecycle
def test_every_chart_is_installed_and_upgraded_by_chart_testing(cluster, tmp_path):
    go_tools.build("chart-testing")
    fleet = VALUES["gpu-accept"] | {"nodes": len(cluster.schedulable_nodes())}
    repository(tmp_path, VALUES | {"gpu-accept": fleet})
    command = [
        "ct", "install", "--all", "--upgrade", "--chart-dirs", "charts", "--target-branch", "main",
        "--helm-extra-args", "--timeout 120s", "--helm-extra-set-args", " ".join(cluster.helm_image()),
    ]  # fmt: skip
    done = ran(*command, cwd=tmp_path, timeout=390)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    upgraded = [
        line for line in done.stdout.splitlines() if line.startswith("Testing upgrades of chart")
    ]
    assert len(upgraded) == 2 * len(CHARTS) and "skipped" not in done.stdout
    assert all(f'{chart} => (version: "1.0.1"' in done.stdout for chart in CHARTS)
