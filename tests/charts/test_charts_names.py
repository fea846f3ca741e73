"""The name of a run's object depends on what the user chose, and not on the version of the chart."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from hack.gen import value_keys
from tests.helpers.rendering import REPO, defaults, objects, output, refusal, sets
from tests.helpers.rendering import render as render_chart

pytestmark = pytest.mark.slow

GROUP = yaml.safe_load("""
schemaVersion: 1
name: rl
secretName: s
files: {code: {train.py: {text: a}}}
tasks: {buffer: {run: 'true', podTemplate: {spec: {containers: [{readinessProbe: {exec: {}}}]}}},
  trainer: {accelerator: {types: [H100], count: 8}, numNodes: 2, run: torchrun train.py,
  env: {EPOCHS: '3'}, secrets: [TOKEN]}}
""")
BASE = {
    "jobset": ("job-group", GROUP),
    "jobs": ("job-group", {**GROUP, "workload": "jobs"}),
    "ddp-run": ("ddp-run", {"nodes": 2}),
    "gpu-accept": ("gpu-accept", {"workload": "job", "nodes": 2}),
}


def of_bases(table: str) -> list[tuple[str, str]]:
    """Base and change of each line, which begins with the bases to which the change is applied."""
    rows = [line.partition(": ") for line in table.splitlines() if not line.startswith("#")]
    return [(base, change) for bases, _, change in rows for base in bases.split()]


CHANGES = of_bases("""\
jobset jobs: tasks.trainer.run="torchrun other.py"
jobset jobs: tasks.trainer.setup="pip install x"
jobset jobs: tasks.trainer.env.EPOCHS="4"
jobset jobs: tasks.trainer.numNodes=3
jobset jobs: tasks.trainer.image="registry.example.com/other:1"
jobset jobs: tasks.trainer.accelerator={"types": ["H100"], "count": 1}
jobset jobs: gpuResourceName="example.com/gpu"
jobset jobs: tasks.trainer.secrets=["OTHER"]
jobset jobs: tasks.trainer.volumes=[{"mountPath": "/data", "claimName": "data"}]
jobset jobs: tasks.trainer.fileMounts=[{"mountPath": "/code", "files": "code"}]
jobset jobs: tasks.trainer.workdir={"files": "code"}
jobset jobs: tasks.trainer.workdir={"git": {"url": "https://example.com/x.git"}}
jobset jobs: tasks.trainer.terminationDelaySeconds=5
jobset jobs: tasks.trainer.dependsOn={"buffer": "ready"}
jobset jobs: tasks.trainer.podTemplate={"metadata": {"labels": {"team": "a"}}}
jobset jobs: tasks.buffer.recovery={"maxRestartsOnErrors": 1}
jobset jobs: files.code={"train.py": {"text": "b"}}
jobset jobs: files.code={"train.py": {"base64": "AA=="}}
jobset jobs: files.code={"train.py": {"text": "a", "executable": true}, "x": {"text": ""}}
jobset jobs: runId="again"
jobset jobs: secretName="other"
jobset jobs: primaryTasks=["trainer"]
jobset jobs: onFailure="continue"
jobset jobs: agent.resources={"requests": {"cpu": 1}}
jobset jobs: image.pullPolicy="Always"
jobset jobs: imagePullSecrets=[{"name": "registry"}]
jobset jobs: nodeSelector={"a": "b"}
jobset jobs: tolerations=[{"operator": "Exists"}]
jobset jobs: terminationGracePeriodSeconds=15
jobset jobs: containerSecurityContext.readOnlyRootFilesystem=true
jobset jobs: tasks.trainer.resources.requests={"cpu": 1}
jobset jobs: tasks.evaluator.run="true"
jobset jobs: image.tag="2"
jobset jobs: timeouts.joinSeconds=5
jobset jobs ddp-run: placement.topologyKey="topology.kubernetes.io/zone"
jobset jobs: podSecurityContext.runAsUser=1000
jobset jobs: sharedMemory.sizeLimit="2Gi"
jobset jobs: clusterDomain="cluster.example"
jobset jobs: interConnection=false
jobset: tasks.trainer.recovery={"recoverOnExitCodes": [29]}
jobset: tasks.trainer.recovery={"maxRestartsOnErrors": 1}
jobset jobs ddp-run gpu-accept: authentication.secretName="key"
jobset jobs ddp-run: kueue.queueName="team-a"
jobset: activeDeadlineSeconds=5
ddp-run: podTemplate.spec.runtimeClassName="nvidia"
ddp-run: nodes=3
ddp-run: gpusPerNode=1
ddp-run: program.args=["train.py"]
ddp-run: env.EPOCHS="4"
ddp-run: rendezvous.port=29501
""")
# What the user chose has the same pods, or Kubernetes changes it in place.
SAME = of_bases("""\
jobset: accelerators.types.OTHER={"label": ["x"]}
ddp-run: procsPerNode=1
ddp-run: volumes.models.readOnly=false
ddp-run: commonAnnotations={"a": "b"}
ddp-run: image.digest=""
ddp-run: networkPolicy.enabled=false
ddp-run jobset jobs: ttlSecondsAfterFinished=5
jobs ddp-run: activeDeadlineSeconds=5
jobset jobs: helperImage.tag="x"
ddp-run: rendezvous.etcd.image="registry.example.com/etcd:1"
ddp-run: image.tag="0.1.0"
ddp-run: gpuResourceName="a/b"
ddp-run: authentication.secretKey="x"
""")


def render(
    base: str, *options: str, chart: Path | None = None, release: str = "test"
) -> dict[str, dict]:
    """Name -> what cannot be changed, of the Jobs, the JobSet, the StatefulSet and the ConfigMap."""
    name, values = BASE[base]
    items = objects(output("helm", chart or name, values, *options, release=release))
    others = ("Service", "NetworkPolicy", "Deployment")
    found = [item for item in items if item["kind"] not in others]
    found = [
        item for item in found if "helm.sh/hook" not in item["metadata"].get("annotations", {})
    ]
    fields = ("spec", "data", "binaryData")
    found = [item for item in found if "-programs-" not in item["metadata"]["name"]]
    return {
        f"{item['kind']}/{item['metadata']['name']}": [item.get(field) for field in fields]
        for item in found
    }


@pytest.mark.parametrize(("base", "change"), CHANGES)
def test_a_change_is_a_new_object(base, change):
    assert not set(render(base)) & set(render(base, "--set-json", change))


@pytest.mark.parametrize(("base", "change"), SAME)
def test_what_changes_no_pod_changes_no_name(base, change):
    assert set(render(base)) == set(render(base, "--set-json", change))


def next_version(chart: Path):
    """What a release may change: version and image, the pods of a run, scripts, defaults, new
    values.
    """
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(
        yaml.safe_dump({**about, "version": "9.9.9", "appVersion": "9.9.9"})
    )
    pod = chart / "templates/_pod.tpl"
    pod.write_text(pod.read_text().replace("enableServiceLinks: false", "enableServiceLinks: true"))
    for script in (chart / "files").glob("*.sh"):
        script.write_text(f"{script.read_text()}# new\n")
    values = yaml.safe_load((chart / "values.yaml").read_text())
    values |= {
        "sharedMemory": {"sizeLimit": "3Gi"},
        "new": {"value": 1},
        "image": {**values["image"], "new": "x"},
    }
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
def test_a_new_version_of_a_chart_renames_no_run(base, tag, tmp_path):
    """Under the same name, Kubernetes refuses the new pods, and the run goes on."""
    chart = shutil.copytree(REPO / "charts" / BASE[base][0], tmp_path / BASE[base][0])
    next_version(chart)
    options = ["--set-json", f'image.tag="{tag}"']
    before, after = render(base, *options), render(base, *options, chart=chart)
    assert set(before) == set(after) and before != after


def test_a_new_version_of_the_chart_does_not_restart_a_stateful_set():
    """Kubernetes accepts another template for these pods, and would replace them one by one."""
    (found,) = [
        spec
        for name, (spec, *_) in render("ddp-run", "--set", "workload=statefulset").items()
        if "Stateful" in name
    ]
    assert found["updateStrategy"] == {"type": "OnDelete"}


@pytest.mark.parametrize("chart", ["ddp-run", "job-group"])
def test_the_default_values_written_out_are_no_choice(chart):
    """Also the numbers, which Helm reads as another type from a file than from --set."""
    base = {"ddp-run": "ddp-run", "job-group": "jobset"}[chart]
    written = defaults(chart)
    grace = f"terminationGracePeriodSeconds={written['terminationGracePeriodSeconds']}"
    for key in ("image", *BASE[base][1]):
        written.pop(key, None)
    values = {key: value for key, value in written.items() if value is not None}
    assert render(base) == render(base, *sets(**values)) == render(base, "--set", grace)


@pytest.mark.parametrize("base", BASE)
def test_two_releases_share_no_object(base):
    assert not set(render(base)) & set(render(base, release="other"))


@pytest.mark.parametrize("chart", ["ddp-run", "gpu-accept"])
def test_the_names_of_objects_can_be_chosen(chart):
    for option, name in (("nameOverride=part", "test-part"), ("fullnameOverride=whole", "whole")):
        found = {item["metadata"]["name"] for item in render_chart(chart, {}, "--set", option)}
        assert {
            each for each in found if each != name and not each.startswith(f"{name}-")
        } == set(), found
    assert "fullnameOverride" in refusal(chart, {}, "--set", "fullnameOverride=8gpu")
    for word in ("on", "null", "true", "y"):  # which YAML does not take for text
        assert "Service" in refusal(chart, {}, "--set-string", f"fullnameOverride={word}")
