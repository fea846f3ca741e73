"""Values that real clusters need, each with what the pod, or the object around it, must have in the
end.
"""

from collections.abc import Iterator

import pytest
import yaml

from tests.helpers.rendering import REPO, each_helm, pod_templates, render

CASES = yaml.safe_load((REPO / "tests/charts/real_clusters.yaml").read_text())
PODS = {"ddp-run": "JobSet Job StatefulSet", "gpu-accept": "DaemonSet Job", "job-group": "JobSet"}
GROUP = {"schemaVersion": 1, "name": "rl", "tasks": {"a": {"run": "true"}, "b": {"run": "true"}}}


def merged(base: dict, over: dict) -> dict:
    both = {
        key: merged(base[key], over[key])
        for key in base.keys() & over.keys()
        if isinstance(base[key], dict)
    }
    return {**base, **over, **both}


def facts(node: object, path: str = "") -> Iterator[str]:
    """Every leaf as path=value."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from facts(child, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for child in node:
            yield from facts(child, f"{path}[]")
    else:
        yield f"{path}={node}"


@each_helm
@pytest.mark.parametrize("case", CASES)
def test_a_real_cluster_gets_what_it_needs(case, helm):
    chart, values, wanted, *options = CASES[case]
    values = merged(GROUP, values) if chart == "job-group" else values
    items = render(chart, values, *(options[0] if options else ()), helm=helm)
    kinds = [each["kind"] for each in items]
    workload = next(kind for kind in PODS[chart].split() if kind in kinds)
    for fact in wanted:
        *words, path = fact.split()
        kind = next((word for word in words if word in kinds), workload)
        of_kind = [item for item in items if item["kind"] == kind]
        nodes = pod_templates(of_kind) if "pod" in words else of_kind
        found = {
            each.removeprefix("spec." * ("pod" in words)) for node in nodes for each in facts(node)
        }
        assert (path in found) != ("no" in words), fact


# What a platform team writes once, for all charts.
TEAM = yaml.safe_load("""
podTemplate: {spec: {runtimeClassName: nvidia}}
priorityClassName: research
commonLabels: {team: research}
commonAnnotations: {example.com/owner: research}
kueue: {queueName: team-a}
tolerations: [{key: spot, operator: Exists}]
image: {repository: ''}
global: {imageRegistry: mirror.example.com, imagePullSecrets: [mirror],
  compatibility: {openshift: {adaptSecurityContext: force}}}
""")
OF_THE_CHART = {"ddp-run": {}, "gpu-accept": {"workload": "job", "nodes": 2}, "job-group": GROUP}


@each_helm
@pytest.mark.parametrize("chart", PODS)
def test_one_file_of_a_team_fits_every_chart(chart, helm):
    items = render(chart, TEAM | OF_THE_CHART[chart], "--set", "image.repository=", helm=helm)
    for item in items:
        assert item["metadata"]["labels"]["team"] == "research"
        assert item["metadata"]["annotations"]["example.com/owner"] == "research"
    (workload,) = [
        item
        for item in items
        if item["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == "team-a"
    ]
    found = {each.rpartition("spec.template.spec.")[2] for each in facts(workload)}
    assert {
        "runtimeClassName=nvidia",
        "priorityClassName=research",
        "imagePullSecrets[].name=mirror",
    } <= found
    assert not [each for each in found if "runAsUser" in each]
    images = [
        each.partition(".image=")[2] for item in items for each in facts(item) if ".image=" in each
    ]
    assert images and all(each.startswith("mirror.example.com/") for each in images)
