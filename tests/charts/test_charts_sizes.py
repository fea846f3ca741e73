"""Every object and every release fits where Kubernetes, kubectl and Helm keep it, under any version of the chart."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helpers.rendering import CHARTS, HELMS, IMAGE, LEAST, REPO, Scenario, objects, rendered, scenarios, template

pytestmark = pytest.mark.slow

OBJECT = 262_144  # bytes of annotations, in which `kubectl apply` and Argo CD keep an object
RELEASE = 1_048_576  # bytes of a Secret, in which Helm keeps a release
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@pytest.mark.parametrize("scenario", scenarios(), ids=str)
def test_kubectl_can_apply_every_object(scenario: Scenario) -> None:
    items = objects(rendered("helm", scenario))
    largest = max((len(json.dumps(item, separators=(",", ":"))), item["kind"]) for item in items)
    print(largest)
    assert largest[0] < OBJECT, largest


@pytest.mark.parametrize("scenario", scenarios(), ids=str)
def test_helm_can_keep_a_release(scenario: Scenario) -> None:
    command = ["helm", "install", "test", str(REPO / "charts" / scenario.chart), "--dry-run=client", "-o", "json"]
    options = ["-f", "-", "--set", IMAGE]
    done = subprocess.run([*command, *options], input=scenario.values, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    release = json.dumps(json.loads(done.stdout), separators=(",", ":")).encode()
    size = len(base64.b64encode(gzip.compress(release, 9)))
    print(size)
    assert size < 0.75 * RELEASE, size


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The charts as tools package them that stamp a commit or a digest on versions."""
    folder = tmp_path_factory.mktemp("packages")
    for chart in CHARTS:
        version = ("--version", "1.2.3-rc.1+abc", "--app-version", "2+x")
        command = ["helm", "package", str(REPO / "charts" / chart), *version, "-d", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("chart", CHARTS)
def test_a_version_with_build_metadata_gives_legal_labels_and_images(packages: Path, chart: str, helm: str) -> None:
    (package,) = packages.glob(f"{chart}-*.tgz")
    done = template(helm, package, json.dumps(LEAST[chart]).encode())
    assert done.returncode == 0, done.stderr.decode()
    for item in objects(done.stdout.decode()):
        for labels in (item["metadata"].get("labels", {}), pod_labels(item)):
            assert [value for value in labels.values() if not LABEL.fullmatch(value)] == [], item["metadata"]["name"]
    images = re.findall(r"image: (\S+)", done.stdout.decode())
    assert images and not [image for image in images if "+" in image]
    assert [item for item in yaml.safe_load_all(done.stdout) if "1.2.3-rc.1_abc" in json.dumps(item)]


def pod_labels(item: dict) -> dict:
    return item.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})


def test_no_file_of_a_chart_is_one_that_flux_leaves_out() -> None:
    """What the source-controller ignores in a git repository, by its documentation of GitRepository (v1)."""
    left_out = {".jpg", ".jpeg", ".gif", ".png", ".wmv", ".flv", ".gz", ".zip"}
    files = [path for chart in CHARTS for path in (REPO / "charts" / chart).rglob("*") if path.is_file()]
    assert len(files) > 50 and [path.name for path in files if path.suffix in left_out] == []
