"""jobgen volume: SkyPilot's volume files as PersistentVolumeClaims."""

import re

import pytest
import yaml

VOLUME = "name: data\ntype: k8s-pvc\ninfra: k8s/my-context\nsize: 100Gi\n"


def test_a_volume_becomes_a_claim(jobgen):
    config = "labels: {team: rl}\nconfig: {namespace: ml, storage_class_name: nfs, access_mode: ReadWriteMany}\n"
    result = jobgen("volume", "-", stdin=VOLUME + config)
    assert (result.exit_code, result.stderr) == (0, "")
    assert yaml.safe_load(result.stdout) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "ml", "labels": {"team": "rl"}},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "nfs",
            "resources": {"requests": {"storage": "100Gi"}},
        },
    }


@pytest.mark.parametrize(("size", "storage"), [("'50'", "50Gi"), ("1TB", "1024G"), ("512Mi", "512Mi")])
def test_sizes_are_those_of_tasks_volumes(jobgen, size, storage):
    result = jobgen("volume", "-", stdin=VOLUME.replace("100Gi", size))
    assert yaml.safe_load(result.stdout)["spec"]["resources"]["requests"]["storage"] == storage
    assert "ReadWriteMany" in result.stderr  # the default is for one node


def test_several_documents_become_several_claims(jobgen):
    result = jobgen("volume", "-", stdin=f"{VOLUME}---\n{VOLUME.replace('data', 'more')}")
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(result.stdout)] == ["data", "more"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("k8s-pvc", "k8s-hostpath"), "refused-field"),
        (("k8s-pvc", "runpod-network-volume"), "refused-field"),
        (("k8s/my-context", "aws"), "refused-field"),
        (("size: 100Gi", "use_existing: true"), "refused-field"),
        (("size: 100Gi", "labels: {}"), "missing-field"),
        (("100Gi", "lots"), "bad-value"),
        (("name: data", "name: My_Data"), "bad-value"),
        (("size:", "szie: 1\nsize:"), "unknown-field"),
        (("size: 100Gi", "size: 100Gi\nconfig: {access_mode: Everyone}"), "bad-value"),
        (("size: 100Gi", "size: [1]"), "wrong-type"),
        (("size: 100Gi", "size: 1Gi\nsize: 2Gi"), "duplicate-key"),
        (("name: data", "name: [\n"), "not-yaml"),
    ],
)
def test_what_is_no_claim_is_refused_with_its_position(jobgen, change, code):
    result = jobgen("volume", "-", stdin=VOLUME.replace(*change))
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.match(rf"<stdin>:\d+:\d+: error: .*\[{code}\]$", result.stderr.splitlines()[0]), result.stderr


def test_an_empty_file_is_refused(jobgen):
    assert jobgen("volume", "-", stdin="").exit_code == 1
