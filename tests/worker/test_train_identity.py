"""One run between two starts of a release: whatever values change, the program finds its folder and continues."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers.rendering import objects, template
from tests.helpers.train_worlds import Ranks

SMOKE = "gpuworker.train.train_smoke"
ARGUMENTS = ["-m", SMOKE, "--output", "/out", "--device", "cpu", "--samples", "512", "--batch", "32", "--epochs", "2"]
BASE = {"nodes": 2, "program": {"args": ARGUMENTS}}


def with_arguments(*more: str) -> dict:
    return {"program": {"args": [*ARGUMENTS, *more]}}


# Values that change between two starts, and whether the model and its data stay the same.
CHANGES: dict[str, tuple[dict, bool]] = {
    "fewer nodes": ({"nodes": 1}, True),
    "more nodes": ({"nodes": 3}, True),
    "more processes": ({"nodes": 1, "procsPerNode": 2}, True),
    "more memory": ({"resources": {"limits": {"memory": "8Gi"}}}, True),
    "more shared memory": ({"sharedMemory": {"sizeLimit": "32Gi"}}, True),
    "another tag": ({"image": {"tag": "fixed"}}, True),
    "another digest": ({"image": {"digest": "sha256:" + "0" * 64}}, True),
    "another pull policy": ({"image": {"pullPolicy": "Always"}}, True),
    "the user's image": ({"program": {"args": ARGUMENTS, "image": "registry.example.com/mine:2"}}, True),
    "a longer heartbeat": ({"timeouts": {"heartbeatSeconds": 90}}, True),
    "a longer time-out": ({"timeouts": {"collectiveSeconds": 3600}}, True),
    "a longer start": ({"timeouts": {"joinSeconds": 1200, "startupCollectiveSeconds": 1200}}, True),
    "more restarts": ({"maxRestarts": 3}, True),
    "a longer grace period": ({"terminationGracePeriodSeconds": 300}, True),
    "another start": ({"runId": "again"}, True),
    "a JobSet": ({"workload": "jobset"}, True),
    "a StatefulSet": ({"workload": "statefulset"}, True),
    "a bare torchrun": ({"launcher": "torchrun"}, True),
    "another port": ({"rendezvous": {"port": 29600}}, True),
    "no hooks": ({"rankHooks": False}, True),
    "debug variables": ({"env": {"NCCL_DEBUG": "INFO"}}, True),
    "a node selector": ({"nodeSelector": {"pool": "b"}}, True),
    "tolerations": ({"tolerations": []}, True),
    "a priority": ({"priorityClassName": "high"}, True),
    "TCP": ({"network": {"nccl": "tcp"}}, True),
    "another placement": ({"placement": {"onePodPerNode": "required"}}, True),
    "a tracker": ({"tracking": {"mlflow": {"uri": "http://mlflow.mlflow.svc:5000"}}}, True),
    "more epochs": (with_arguments("--epochs", "3"), True),
    "another batch": (with_arguments("--batch", "16"), True),
    "more frequent saves": (with_arguments("--save-every", "1", "--keep", "5"), True),
    "another model": (with_arguments("--features", "64"), False),
    "other data": (with_arguments("--samples", "500"), False),
    "another seed": (with_arguments("--seed", "7"), False),
    "another name": ({"runName": "second"}, False),
}


def rendered(change: dict) -> tuple[str, list[str], dict[str, str]]:
    """Name of the object, arguments and environment of the trainer."""
    done = template("helm", "ddp-run", json.dumps({**BASE, **change}).encode())
    assert done.returncode == 0, done.stderr.decode()
    (item,) = [each for each in objects(done.stdout.decode()) if each["kind"] in ("Job", "JobSet", "StatefulSet")]
    spec = item["spec"]
    if item["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    return item["metadata"]["name"], container["args"], variables


def start(change: dict, out: Path) -> Ranks:
    """Run to the end what the chart renders, with `out` as the volume at /out and one process per rank."""
    _, arguments, variables = rendered(change)
    words = [word.replace("/out", str(out)) for word in arguments[arguments.index(SMOKE) + 1 :]]
    world = int(variables["NNODES"]) * int(variables["NPROC_PER_NODE"])
    out.mkdir(exist_ok=True)
    ranks = Ranks(SMOKE, tuple(words), world, out, RUN_ID=variables["RUN_ID"])
    ranks.codes = ranks.wait()
    return ranks


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """Volume of a run that was lost in its second epoch."""
    out = tmp_path_factory.mktemp("volume")
    ranks = start(with_arguments("--save-every", "3", "--keep", "9"), out)
    assert set(ranks.codes) == {0}, ranks.all_output()
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    for name in ("epoch-0002", "epoch-0002-step-00000015", "report.json", "report.html"):
        target = folder / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    return out


def test_at_least_30_values_change_the_object_and_not_the_run():
    same = [change for change, resumes in CHANGES.values() if resumes]
    names = {rendered(change)[0] for change in same}
    assert len(same) >= 30 and len(names) == len(same)
    assert {rendered(change)[2]["RUN_ID"] for change in same} == {rendered({})[2]["RUN_ID"]}


@pytest.mark.slow
@pytest.mark.parametrize("change, resumes", CHANGES.values(), ids=CHANGES)
def test_a_run_continues_after_a_change_of_values_where_the_model_is_the_same(interrupted, tmp_path, change, resumes):
    out = shutil.copytree(interrupted, tmp_path / "out", symlinks=True)
    before = sorted(path.name for path in out.iterdir() if path.is_dir())
    ranks = start(change, out)
    folders = sorted(path.name for path in out.iterdir() if path.is_dir())
    if resumes:
        assert "resumed=epoch-0002-step-" in ranks.output and set(ranks.codes) == {0}, ranks.all_output()
        assert folders == before
    elif "runName" in change:
        assert "resumed=no" in ranks.output and folders == sorted([*before, "second"])
    else:
        assert 2 in ranks.codes and "another training" in ranks.all_output() and folders == before
