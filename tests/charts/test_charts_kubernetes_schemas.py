"""kubeconform: what the charts render has no field that Kubernetes or JobSet would drop or refuse.

One Helm is enough here: test_charts_render.py shows that the other one renders the same objects.
VALUES_KUBERNETES names further versions of Kubernetes whose schemas the objects must fit.
"""

from __future__ import annotations

import json
import os

import pytest
import yaml

from hack.deps import kubernetes_schemas
from tests.helpers.processes import ran
from tests.helpers.rendering import Scenario, objects, rendered, scenarios

SCENARIOS = scenarios()
VERSIONS = ["", *os.environ.get("VALUES_KUBERNETES", "").split()]  # the first is the pinned one


def kubeconform(version: str, items: list[dict]) -> dict[str, int]:
    location = f"-schema-location={kubernetes_schemas.location(version)}"
    command = ["kubeconform", "-strict", "-summary", "-output=json", location, "-"]
    done = ran(*command, input=yaml.dump_all(items, Dumper=yaml.CSafeDumper), timeout=60)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    print(*(found["msg"] for found in report["resources"]), sep="\n")
    assert (done.returncode == 0) == (report["summary"]["valid"] == len(items)), done.stdout
    return report["summary"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version or "pinned")
def test_rendered_objects_fit_their_schemas(scenario: Scenario, version: str) -> None:
    items = objects(rendered("helm", scenario))
    assert kubeconform(version, items) == {
        "valid": len(items),
        "invalid": 0,
        "errors": 0,
        "skipped": 0,
    }
