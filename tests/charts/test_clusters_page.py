"""docs/clusters.md and the charts agree: labels of GPU nodes, taints, and the table of fast
networks.
"""

import re

import pytest
import yaml

from tests.helpers.pages import code
from tests.helpers.rendering import REPO, pod_templates, render, task

PAGE = (REPO / "docs/clusters.md").read_text()
TYPES: dict[str, dict[str, list[str]]] = {}  # GPU type -> node label -> values
for label, types in yaml.safe_load(
    (REPO / "charts/job-group/files/gpu-types.yaml").read_text()
).items():
    for name, values in types.items():
        TYPES.setdefault(name, {})[label] = values


def section(title: str) -> str:
    return re.search(rf"^## {title}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)[1]


def rows(title: str) -> list[list[str]]:
    """Cells of the rows of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


LABELS = {
    row[0].strip("`"): re.findall(r"`([^`]+)`", row[2]) for row in rows("Labels of GPU nodes")
}
(TEXT,) = code(section("Labels of GPU nodes"), "yaml")
ADDED = yaml.safe_load(TEXT)
# A cloud has one label for the name of the GPU, whoever makes the nodes of AWS.
AWS = ("karpenter.k8s.aws/instance-gpu-name", "eks.amazonaws.com/instance-gpu-name")


def found_by(kind: str, **values: object) -> dict[str, list[str]]:
    """Node label -> values by which the pods of a group with this type of GPU find their nodes."""
    (pod,) = pod_templates(
        render("job-group", {**task(accelerator={"types": [kind], "count": 8}), **values})
    )
    terms = node_terms(pod)
    assert all(len(term["matchExpressions"]) == 1 for term in terms), (
        "one term per label: any of them is enough"
    )
    return {each["key"]: each["values"] for term in terms for each in term["matchExpressions"]}


def node_terms(pod: dict) -> list[dict]:
    required = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    return required["nodeSelectorTerms"]


def test_the_page_has_every_label_of_the_table_and_no_other():
    assert {*LABELS} == {label for labels in TYPES.values() for label in labels}


def test_every_example_of_the_page_is_a_value_that_finds_nodes():
    known = [*TYPES.values(), *ADDED["accelerators"]["types"].values()]
    for label, examples in LABELS.items():
        values = {value for labels in known for value in labels.get(label, [])}
        assert {*examples} <= values, label


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_finds_its_nodes_by_each_of_its_labels(kind):
    assert found_by(kind) == TYPES[kind]


@pytest.mark.parametrize("kind", ADDED["accelerators"]["types"])
def test_a_type_that_the_page_adds_is_not_in_the_table_and_finds_its_nodes(kind):
    assert kind not in TYPES
    assert found_by(kind, **ADDED) == ADDED["accelerators"]["types"][kind]


def test_a_gpu_has_one_name_on_aws_whoever_makes_the_nodes():
    for kind, labels in {**TYPES, **ADDED["accelerators"]["types"]}.items():
        assert labels.get(AWS[0]) == labels.get(AWS[1]), kind


def test_gpu_accept_tests_the_nodes_of_each_vendor_of_the_page():
    (daemons,) = [
        each for each in render("gpu-accept", {"nodes": 2}) if each["kind"] == "DaemonSet"
    ]
    terms = node_terms(daemons["spec"]["template"])
    tested = {each["key"].split("/")[0] for term in terms for each in term["matchExpressions"]}
    # Not by the type of the instance, which says nothing of GPUs.
    assert {label.split("/")[0] for label in LABELS} - {"node.kubernetes.io"} <= tested
