"""kubeconform: what the charts render has no field that Kubernetes or JobSet would drop or refuse.

One Helm is enough here: test_charts_render.py shows that the other one renders the same objects. VALUES_KUBERNETES
names further versions of Kubernetes whose schemas the objects must fit.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
import yaml

from hack.deps import kubernetes_schemas
from tests.helpers.rendering import Scenario, objects, rendered, scenarios

SCENARIOS = scenarios()
VERSIONS = ["", *os.environ.get("VALUES_KUBERNETES", "").split()]  # the first is the pinned one


@pytest.fixture(scope="session")
def location() -> str:
    return kubernetes_schemas.location()


def kubeconform(location: str, items: list[dict]) -> dict[str, int]:
    command = ["kubeconform", "-strict", "-summary", "-output=json", f"-schema-location={location}", "-"]
    done = subprocess.run(
        command, input=yaml.dump_all(items, Dumper=yaml.CSafeDumper), capture_output=True, text=True, timeout=60
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    print(*(found["msg"] for found in report["resources"]), sep="\n")
    assert (done.returncode == 0) == (report["summary"]["valid"] == len(items)), done.stdout
    return report["summary"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version or "pinned")
def test_rendered_objects_fit_their_schemas(scenario: Scenario, version: str) -> None:
    items = objects(rendered("helm", scenario))
    found = kubeconform(kubernetes_schemas.location(version), items)
    assert found == {"valid": len(items), "invalid": 0, "errors": 0, "skipped": 0}


# Maps whose keys are the user's: anything is a right spelling there.
FREE = {("data",), ("binaryData",), ("labels",), ("annotations",), ("matchLabels",), ("nodeSelector",)}
FREE |= {("limits",), ("requests",)}
FREE |= {("selector",)}  # of a Service


def places(node: object, path: tuple = ()) -> list[tuple]:
    """Paths of all objects within an object whose fields Kubernetes names; of a list's objects, those of the first."""
    if isinstance(node, list):
        return [place for item in node[:1] for place in places(item, (*path, 0))]
    if not isinstance(node, dict) or path[-1:] in FREE:
        return []
    return [path, *(place for key, value in node.items() for place in places(value, (*path, key)))]


@pytest.mark.parametrize("kind", ["ConfigMap", "DaemonSet", "Job", "JobSet", "NetworkPolicy", "Role", "Service"])
def test_a_misspelt_field_is_refused_wherever_it_stands(kind: str, location: str) -> None:
    """One object of the kind, and for each of its parts a copy in which that part has an unknown field."""
    items = [item for scenario in SCENARIOS for item in objects(rendered("helm", scenario)) if item["kind"] == kind]
    right = max(items, key=lambda item: len(places(item)))
    wrong = []
    for place in places(right):
        copy = json.loads(json.dumps(right))
        part = copy
        for step in place:
            part = part[step]
        part["misspeltField"] = 1
        wrong.append(copy)
    assert kubeconform(location, [right])["valid"] == 1
    assert kubeconform(location, wrong) == {"valid": 0, "invalid": len(wrong), "errors": 0, "skipped": 0}


def test_a_kind_without_a_schema_is_an_error(location: str) -> None:
    unknown = {"apiVersion": "example.com/v1", "kind": "Unknown", "metadata": {"name": "x"}}
    assert kubeconform(location, [unknown])["errors"] == 1
