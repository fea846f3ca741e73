"""The charts, the values they are tested with, and both releases of Helm that must render them."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from hack.deps import kubernetes_schemas
from tests.helpers.processes import ran

REPO = Path(__file__).resolve().parents[2]
CHARTS = tuple(sorted(path.parent.name for path in (REPO / "charts").glob("*/Chart.yaml")))
HELMS = ("helm", "helm3")
# Versions of Kubernetes whose schemas the objects must fit; the first is the pinned one.
VERSIONS = ["", *os.environ.get("VALUES_KUBERNETES", "").split()]
IMAGE = "image.repository=registry.example.com/gpu-worker"
GROUP = {"schemaVersion": 1, "name": "rl", "tasks": {"t": {"run": "true"}}}
# Values without which a chart renders nothing.
LEAST = {"ddp-run": {}, "gpu-accept": {}, "job-group": GROUP}


each_chart = pytest.mark.parametrize("chart", CHARTS)
each_helm = pytest.mark.parametrize("helm", HELMS)


@dataclass(frozen=True)
class Scenario:
    chart: str
    source: Path  # values of the chart, or a job group that jobgen turns into values

    def __str__(self) -> str:
        return f"{self.chart}/{self.source.relative_to(REPO)}"

    @functools.cached_property
    def values(self) -> bytes:
        if self.source.name.endswith("values.yaml"):
            return self.source.read_bytes()
        return jobgen(self.source)


def chart_of(example: Path) -> str:
    """The chart that the folder of an example names first; a group's folder names none."""
    return next((chart for chart in CHARTS if example.parent.name.startswith(chart)), "job-group")


def scenarios() -> list[Scenario]:
    """Every scenario file of every chart, every example, and every job group that is a seed."""
    files = [
        Scenario(chart, path)
        for chart in CHARTS
        for path in (REPO / "charts" / chart / "ci").glob("*.yaml")
    ]
    groups = [
        *REPO.glob("values-examples/*/group.yaml"),
        *REPO.glob("tests/generator/seeds/*.yaml"),
    ]
    # This seed shows that a name may be used once only; no values come of it.
    groups = [path for path in groups if path.name != "k8s_duplicate_names.yaml"]
    examples = [
        path
        for path in REPO.glob("values-examples/*/values.yaml")
        if not path.with_name("group.yaml").exists()
    ]
    files += [Scenario(chart_of(path), path) for path in examples]
    return sorted(files + [Scenario("job-group", path) for path in groups], key=str)


each_scenario = pytest.mark.parametrize("scenario", scenarios(), ids=str)


def jobgen(group: Path) -> bytes:
    command = [sys.executable, "-m", "jobgen", "to-values", str(group)]
    done = subprocess.run(
        command, capture_output=True, env={"PYTHONPATH": str(REPO / "generator/src")}, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def template(
    helm: str, chart: str | Path, values: bytes, *options: str, release: str = "test"
) -> subprocess.CompletedProcess:
    """`… | helm template test CHART -f -`. The Kubernetes version is fixed: each client has a
    default of its own.
    """
    # The time-out ends a helm that hangs. On a machine with other work, a large group takes minutes
    # by the clock.
    command = [helm, "template", release, str(REPO / "charts" / chart), "-f", "-"]
    return subprocess.run(
        [*command, "--kube-version=1.34.0", "--set", IMAGE, *options],
        input=values,
        capture_output=True,
        timeout=600,
    )


def schema(chart: str) -> dict:
    return json.loads((REPO / "charts" / chart / "values.schema.json").read_text())


def defaults(chart: str) -> dict:
    return yaml.safe_load((REPO / "charts" / chart / "values.yaml").read_text())


def sets(**values: object) -> list[str]:
    """Options of Helm, which take a value of any type."""
    return [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]


def invalid(text: str, *options: str) -> str:
    """What kubeconform says about objects that their schemas refuse."""
    for version in VERSIONS:
        location = kubernetes_schemas.location(version)
        command = ["kubeconform", "-strict", f"-schema-location={location}", *options, "-"]
        done = ran(*command, input=text, timeout=600)
        if done.returncode:
            return f"Kubernetes {version or '(pinned)'}: {done.stdout[-600:]}{done.stderr}"
    return ""


def output(helm: str, chart: str | Path, values: bytes | dict, *options: str, **more: str) -> str:
    """What it renders, without a refusal."""
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    done = template(helm, chart, text, *options, **more)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def render(chart: str, values: dict, *options: str, helm: str = "helm", **more: str) -> list[dict]:
    """The objects for the least values with these."""
    return objects(output(helm, chart, LEAST[chart] | values, *options, **more))


def refusal(chart: str, values: dict, *options: str, helm: str = "helm") -> str:
    """What Helm says when it refuses; nothing may reach a pipe."""
    done = template(helm, chart, json.dumps(LEAST[chart] | values).encode(), *options)
    assert done.returncode and not done.stdout.strip(), done.stdout.decode()
    return done.stderr.decode()


def task(**fields: object) -> dict:
    """Values of a group of one task."""
    return {**GROUP, "tasks": {"t": {"run": "true", **fields}}}


CLAIM = {"name": "gpus", "resourceClaimTemplateName": "gpus"}
USES = {"resources": {"claims": [{"name": "gpus"}]}}


def claimed(chart: str, spec: dict | None = None, nodes: int = 1) -> dict:
    """Values of a run whose GPUs come from a claim alone, that of a pod with this spec."""
    if spec is None:
        tests, program = {"initContainers": [{"name": "accept", **USES}]}, {"containers": [USES]}
        spec = {"resourceClaims": [CLAIM], **(tests if chart == "gpu-accept" else program)}
    pod = {"podTemplate": {"spec": spec}}
    if chart == "job-group":
        values = task(numNodes=nodes, accelerator={"types": ["H100"], "count": 8}, **pod)
    else:
        values = {"gpusPerNode": 8, "nodes": nodes, **pod}
    return {**values, "gpuResourceName": ""}


@functools.cache
def rendered(helm: str, scenario: Scenario) -> str:
    return output(helm, scenario.chart, scenario.values)


@functools.cache
def objects(text: str) -> list[dict]:
    """The objects that stay; a text without any is an error, not an empty list that passes every
    test.
    """
    found = [
        item for item in yaml.load_all(text, yaml.CSafeLoader) if item and item["kind"] != "List"
    ]
    assert found, f"no objects in {text!r}"
    return found


def checks(text: str) -> list[dict]:
    """The Jobs of no pods, with which Kubernetes checks the pod templates before there is anything
    else.
    """
    (found,) = [
        item for item in yaml.load_all(text, yaml.CSafeLoader) if item and item["kind"] == "List"
    ]
    return found["items"]


def parts(node: object) -> Iterator[dict]:
    """Every object within, itself first."""
    if isinstance(node, dict):
        yield node
    below = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for each in below:
        yield from parts(each)


def pod_templates(node: object) -> list[dict]:
    """Every pod template in an object or a list of objects, of any kind."""
    return [each for each in parts(node) if "containers" in (each.get("spec") or {})]


def containers(node: object) -> list[dict]:
    """Every container of every pod template, those that start first included."""
    specs = [template["spec"] for template in pod_templates(node)]
    return [
        each for spec in specs for each in [*spec.get("initContainers", []), *spec["containers"]]
    ]
