"""The name of a run's object depends on what the user chose, and not on the version of the chart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from hack.gen import value_keys
from tests.helpers.rendering import REPO, objects, template

pytestmark = pytest.mark.slow

GROUP = {
    "schemaVersion": 1,
    "name": "rl",
    "secretName": "s",
    "files": {"code": {"train.py": {"text": "a"}}},
    "tasks": {
        "buffer": {"run": "true", "podTemplate": {"spec": {"containers": [{"readinessProbe": {"exec": {}}}]}}},
        "trainer": {
            "accelerator": {"types": ["H100"], "count": 8},
            "numNodes": 2,
            "run": "torchrun train.py",
            "env": {"EPOCHS": "3"},
            "secrets": ["TOKEN"],
        },
    },
}
BASE = {
    "jobset": ("job-group", GROUP),
    "jobs": ("job-group", {**GROUP, "workload": "jobs"}),
    "ddp-run": ("ddp-run", {"nodes": 2}),
    "gpu-accept": ("gpu-accept", {"workload": "job", "nodes": 2}),
}
ANOTHER_GROUP = [
    'tasks.trainer.run="torchrun other.py"',
    'tasks.trainer.setup="pip install x"',
    'tasks.trainer.env.EPOCHS="4"',
    "tasks.trainer.numNodes=3",
    'tasks.trainer.image="registry.example.com/other:1"',
    'tasks.trainer.accelerator={"types": ["H100"], "count": 1}',
    'gpuResourceName="example.com/gpu"',
    'tasks.trainer.secrets=["OTHER"]',
    'tasks.trainer.volumes=[{"mountPath": "/data", "claimName": "data"}]',
    'tasks.trainer.fileMounts=[{"mountPath": "/code", "files": "code"}]',
    'tasks.trainer.workdir={"files": "code"}',
    'tasks.trainer.workdir={"git": {"url": "https://example.com/x.git"}}',
    "tasks.trainer.terminationDelaySeconds=5",
    'tasks.trainer.dependsOn={"buffer": "ready"}',
    'tasks.trainer.podTemplate={"metadata": {"labels": {"team": "a"}}}',
    'tasks.buffer.recovery={"maxRestartsOnErrors": 1}',
    'files.code={"train.py": {"text": "b"}}',
    'files.code={"train.py": {"base64": "AA=="}}',
    'files.code={"train.py": {"text": "a", "executable": true}, "x": {"text": ""}}',
    'runId="again"',
    'secretName="other"',
    'primaryTasks=["trainer"]',
    'onFailure="continue"',
    'agent.resources={"requests": {"cpu": 1}}',
    'image.pullPolicy="Always"',
    'imagePullSecrets=[{"name": "registry"}]',
    'nodeSelector={"a": "b"}',
    'tolerations=[{"operator": "Exists"}]',
    "terminationGracePeriodSeconds=15",
    "containerSecurityContext.readOnlyRootFilesystem=true",
    'tasks.trainer.resources.requests={"cpu": 1}',
    'tasks.evaluator.run="true"',
    'image.tag="2"',
    "timeouts.joinSeconds=5",
    'placement.topologyKey="topology.kubernetes.io/zone"',
    "podSecurityContext.runAsUser=1000",
    'sharedMemory.sizeLimit="2Gi"',
    'clusterDomain="cluster.example"',
]
ANOTHER_RUN = ["nodes=3", "gpusPerNode=1", 'program.args=["train.py"]', 'env.EPOCHS="4"', "rendezvous.port=29501"]
CHANGES = [
    *(("jobset", change) for change in ANOTHER_GROUP),
    *(("jobs", change) for change in ANOTHER_GROUP),
    *((base, "interConnection=false") for base in ("jobset", "jobs")),
    ("jobset", 'tasks.trainer.recovery={"recoverOnExitCodes": [29]}'),
    ("jobset", 'tasks.trainer.recovery={"maxRestartsOnErrors": 1}'),
    *((base, 'kueue.queueName="team-a"') for base in ("jobset", "jobs", "ddp-run")),  # which Kueue lets nobody change
    ("jobset", "activeDeadlineSeconds=5"),
    ("ddp-run", 'placement.topologyKey="topology.kubernetes.io/zone"'),
    ("ddp-run", 'podTemplate.spec.runtimeClassName="nvidia"'),
    *(("ddp-run", change) for change in ANOTHER_RUN),
]
SAME = [
    ("jobset", 'accelerators.types.OTHER={"label": ["x"]}'),  # of a GPU that no task asks for
    ("ddp-run", "procsPerNode=1"),  # as it is
    ("ddp-run", "volumes.models.readOnly=false"),  # of no claim
    ("ddp-run", 'commonAnnotations={"a": "b"}'),
    ("ddp-run", 'image.digest=""'),  # as before
    ("ddp-run", "networkPolicy.enabled=false"),
    ("ddp-run", "ttlSecondsAfterFinished=5"),
    *((base, "ttlSecondsAfterFinished=5") for base in ("jobset", "jobs")),
    *((base, "activeDeadlineSeconds=5") for base in ("jobs", "ddp-run")),  # which Kubernetes changes in place
    *((base, 'helperImage.tag="x"') for base in ("jobset", "jobs")),
    ("ddp-run", 'rendezvous.etcd.image="registry.example.com/etcd:1"'),
    ("ddp-run", 'image.tag="0.1.0"'),  # as it is
    *(
        ("ddp-run", f"{path}={value}")
        for path, value in (
            ("gpuResourceName", '"a/b"'),
            ("authentication.secretKey", '"x"'),
        )
    ),
]


def render(base: str, *options: str, chart: Path | None = None, release: str = "test") -> dict[str, dict]:
    """Name -> what cannot be changed, of the Jobs, the JobSet, the StatefulSet and the ConfigMap."""
    name, values = BASE[base]
    done = template("helm", chart or name, json.dumps(values).encode(), *options, release=release)
    assert done.returncode == 0, done.stderr.decode()
    others = ("Service", "NetworkPolicy", "Deployment")
    found = [item for item in objects(done.stdout.decode()) if item["kind"] not in others]
    found = [item for item in found if "helm.sh/hook" not in item["metadata"].get("annotations", {})]
    fields = ("spec", "data", "binaryData")
    found = [item for item in found if "-programs-" not in item["metadata"]["name"]]
    return {f"{item['kind']}/{item['metadata']['name']}": [item.get(field) for field in fields] for item in found}


@pytest.mark.parametrize(("base", "change"), CHANGES)
def test_a_change_is_a_new_object(base: str, change: str) -> None:
    assert not set(render(base)) & set(render(base, "--set-json", change))


@pytest.mark.parametrize(("base", "change"), SAME)
def test_what_changes_no_pod_changes_no_name(base: str, change: str) -> None:
    assert set(render(base)) == set(render(base, "--set-json", change))


def next_version(chart: Path) -> None:
    """What a release may change: version and image, the pods of a run, scripts, defaults, new values."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "9.9.9", "appVersion": "9.9.9"}))
    pod = chart / "templates/_pod.tpl"
    pod.write_text(pod.read_text().replace("enableServiceLinks: false", "enableServiceLinks: true"))
    for script in (chart / "files").glob("*.sh"):
        script.write_text(f"{script.read_text()}# new\n")
    values = yaml.safe_load((chart / "values.yaml").read_text())
    values |= {"sharedMemory": {"sizeLimit": "3Gi"}, "new": {"value": 1}, "image": {**values["image"], "new": "x"}}
    (chart / "values.yaml").write_text(yaml.safe_dump(values))
    (chart / "templates/_defaults.tpl").write_text(value_keys.defaults(chart))
    for table in chart.glob("files/gpu-types.yaml"):
        rows = yaml.safe_load(table.read_text())
        rows["nvidia.com/gpu.product"]["H100"].append("NVIDIA-H100-NEW")
        table.write_text(yaml.safe_dump(rows))
    schema = json.loads((chart / "values.schema.json").read_text())
    for place in (schema, schema["properties"]["image"], schema["definitions"].get("image", {})):
        place.get("properties", {})["new"] = {}
    (chart / "values.schema.json").write_text(json.dumps(schema))


@pytest.mark.parametrize("tag", ["", "1"])
@pytest.mark.parametrize("base", BASE)
def test_a_new_version_of_a_chart_renames_no_run(base: str, tag: str, tmp_path: Path) -> None:
    """Under the same name, Kubernetes refuses the new pods, and the run goes on."""
    chart = shutil.copytree(REPO / "charts" / BASE[base][0], tmp_path / BASE[base][0])
    next_version(chart)
    options = ["--set-json", f'image.tag="{tag}"']
    before, after = render(base, *options), render(base, *options, chart=chart)
    assert set(before) == set(after) and before != after


def test_a_new_version_of_the_chart_does_not_restart_a_stateful_set() -> None:
    """Kubernetes accepts another template for these pods, and would replace them one by one."""
    (found,) = [
        spec for name, (spec, *_) in render("ddp-run", "--set", "workload=statefulset").items() if "Stateful" in name
    ]
    assert found["updateStrategy"] == {"type": "OnDelete"}


@pytest.mark.parametrize("chart", ["ddp-run", "job-group"])
def test_the_default_values_written_out_are_no_choice(chart: str) -> None:
    """Also the numbers, which Helm reads as another type from a file than from --set."""
    base = {"ddp-run": "ddp-run", "job-group": "jobset"}[chart]
    written = yaml.safe_load((REPO / f"charts/{chart}/values.yaml").read_text())
    for key in ("image", *BASE[base][1]):
        written.pop(key, None)
    text = [
        option
        for key, value in written.items()
        if value is not None
        for option in ("--set-json", f"{key}={json.dumps(value)}")
    ]
    assert (
        render(base)
        == render(base, *text)
        == render(base, "--set", f"terminationGracePeriodSeconds={written['terminationGracePeriodSeconds']}")
    )


@pytest.mark.parametrize("base", BASE)
def test_two_releases_share_no_object(base: str) -> None:
    assert not set(render(base)) & set(render(base, release="other"))


@pytest.mark.parametrize("chart", ["ddp-run", "gpu-accept"])
def test_the_names_of_objects_can_be_chosen(chart: str) -> None:
    for option, name in (("nameOverride=part", "test-part"), ("fullnameOverride=whole", "whole")):
        done = template("helm", chart, b"", "--set", option)
        assert done.returncode == 0, done.stderr.decode()
        found = {item["metadata"]["name"] for item in objects(done.stdout.decode())}
        assert {each for each in found if each != name and not each.startswith(f"{name}-")} == set(), found
    done = template("helm", chart, b"", "--set", "fullnameOverride=8gpu")
    assert done.returncode != 0 and "fullnameOverride" in done.stderr.decode()
    for word in ("on", "null", "true", "y"):  # which YAML does not take for text
        done = template("helm", chart, b"", "--set-string", f"fullnameOverride={word}")
        assert done.returncode != 0 and "Service" in done.stderr.decode(), word
