"""Every object and every release fits where Kubernetes, kubectl and Helm keep it, under any version
of the chart.
"""

import base64
import gzip
import json
import subprocess

import pytest

from tests.helpers.rendering import CHARTS, IMAGE, REPO, each_scenario, objects, rendered

pytestmark = pytest.mark.slow

OBJECT = 262_144  # bytes of annotations, in which `kubectl apply` and Argo CD keep an object
RELEASE = 1_048_576  # bytes of a Secret, in which Helm keeps a release


@each_scenario
def test_kubectl_can_apply_every_object(scenario):
    items = objects(rendered("helm", scenario))
    largest = max((len(json.dumps(item, separators=(",", ":"))), item["kind"]) for item in items)
    print(largest)
    assert largest[0] < OBJECT, largest


@each_scenario
def test_helm_can_keep_a_release(scenario):
    command = ["helm", "install", "test", str(REPO / "charts" / scenario.chart)]
    options = ["--dry-run=client", "-o", "json", "-f", "-", "--set", IMAGE]
    done = subprocess.run(
        [*command, *options], input=scenario.values, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode()
    release = json.dumps(json.loads(done.stdout), separators=(",", ":")).encode()
    size = len(base64.b64encode(gzip.compress(release, 9)))
    print(size)
    assert size < 0.75 * RELEASE, size


def test_no_file_of_a_chart_is_one_that_flux_leaves_out():
    """What the source-controller ignores in a git repository, by its documentation of GitRepository
    (v1).
    """
    left_out = {".jpg", ".jpeg", ".gif", ".png", ".wmv", ".flv", ".gz", ".zip"}
    files = [
        path for chart in CHARTS for path in (REPO / "charts" / chart).rglob("*") if path.is_file()
    ]
    assert len(files) > 50 and [path.name for path in files if path.suffix in left_out] == []
