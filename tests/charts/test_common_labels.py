"""commonLabels and extraObjects: on every object, in no pod of a run, and without a change of any
name.
"""

from copy import deepcopy

import pytest
import yaml

from tests.helpers.rendering import (
    REPO,
    each_chart,
    each_helm,
    refusal,
    render,
    sets,
)

LABELS = {
    "team": "research",
    "example.com/cost-centre": "42",
    "app.kubernetes.io/part-of": "models",
}
EXTRA = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "mine"},
    "data": {"a": "{{ .Release.Name }} $(X)"},
}
VALUES = {chart: yaml.safe_load((REPO / f"charts/{chart}/ci" / f"{name}-values.yaml").read_text()) for chart, name in
          (("ddp-run", "statefulset"), ("gpu-accept", "job"), ("job-group", "jobset"))}  # fmt: skip


def with_values(helm: str, chart: str, **values: object) -> list[dict]:
    return render(chart, VALUES[chart], *sets(**values), helm=helm)


@each_chart
@each_helm
def test_common_labels_are_on_every_object_and_change_no_pod_of_a_run_or_name(helm, chart):
    etcd = {"workload": "indexed-job", "launcher": "torchrun", "rendezvous.backend": "etcd"}
    options = etcd | {"rendezvous.etcd.deploy": True} if chart == "ddp-run" else {}
    before, after = (
        deepcopy(with_values(helm, chart, **options)),
        with_values(helm, chart, commonLabels=LABELS, **options),
    )
    assert len(before) > 1
    helpers = []
    for old, new in zip(before, after, strict=True):
        old["metadata"]["labels"] |= LABELS
        if old["kind"] == "Deployment" or "helm.sh/hook" in old["metadata"].get("annotations", {}):
            old["spec"]["template"]["metadata"]["labels"] |= LABELS
            helpers.append(old["kind"])
        assert new == old
    assert (
        helpers
        == {"ddp-run": ["Deployment"], "gpu-accept": ["Deployment", "Job"], "job-group": []}[chart]
    )


@each_chart
@each_helm
def test_extra_objects_are_rendered_as_they_are(helm, chart):
    before, after = (
        with_values(helm, chart),
        with_values(helm, chart, extraObjects=[EXTRA, EXTRA | {"kind": "Secret"}]),
    )
    extra = [each for each in after if each["metadata"]["name"] == "mine"]
    assert sorted(extra, key=lambda each: each["kind"]) == [EXTRA, EXTRA | {"kind": "Secret"}]
    rest = [each for each in after if each not in extra]
    assert sorted(rest, key=str) == sorted(
        before, key=str
    )  # each release of Helm has an order of its own


REFUSED = yaml.safe_load("""
commonLabels:
  - {app.kubernetes.io/instance: other}
  - {kueue.x-k8s.io/queue-name: other}
  - {a b: c}
  - {a: b c}
  - {a: true}
  - {a: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx}
extraObjects:
  - [{kind: ConfigMap, metadata: {name: x}}]
  - [{apiVersion: v1, kind: Secret, metadata: {}}]
  - [text]
  - {}
""")


@each_chart
@pytest.mark.parametrize("key", REFUSED)
def test_what_cannot_be_a_label_or_an_object_is_refused(chart, key):
    for value in REFUSED[key]:
        assert key in refusal(chart, VALUES[chart], *sets(**{key: value})), value
