"""jobgen from: manifests of other launchers as values that the charts render."""

import copy
import json
import os
import random

import pytest
import yaml

from jobgen.manifests.torchrun import parse
from tests.helpers.rendering import objects, template

FUZZ = int(os.environ.get("FROM_CASES", 40))  # damaged manifests of each kind


def pod(command, image="registry.example.com/train:1", **spec) -> dict:
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "env": [{"name": "EPOCHS", "value": "3"}, {"name": "MASTER_ADDR", "value": "x"}],
        "resources": {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": 8}},
    }
    return {"spec": {"containers": [container], "nodeSelector": {"nvidia.com/gpu.product": "H100"}, **spec}}


TORCHRUN = ["torchrun", "--nnodes=4", "--nproc_per_node", "8", "--rdzv-backend=c10d", "train.py", "--lr", "3e-4"]
SCRIPT = ["bash", "-c", "set -e\npip install x\nexec torchrun --nproc-per-node=8 \\\n  -m train --epochs 3"]
MANIFESTS = {
    "Job": {"spec": {"completions": 4, "parallelism": 4, "completionMode": "Indexed", "template": pod(TORCHRUN)}},
    "StatefulSet": {"spec": {"replicas": 4, "serviceName": "t", "selector": {}, "template": pod(SCRIPT)}},
    "PyTorchJob": {
        "spec": {
            "nprocPerNode": "8",
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": pod(["python", "-u", "/train.py", "--epochs=3"])},
                "Worker": {"replicas": 3, "template": pod(["python", "-u", "/train.py", "--epochs=3"])},
            },
        }
    },
    "ElasticJob": {
        "spec": {
            "distributionStrategy": "AllreduceStrategy",
            "replicaSpecs": {
                "worker": {
                    "replicas": 4,
                    "template": pod(
                        [
                            "sh",
                            "-c",
                            "dlrover-run --network-check --nnodes=2:$NODE_NUM \\\n --accelerator nvidia.com/gpu "
                            "--nproc_per_node=8 --max_restarts=3 --exclude-straggler \\\n train.py --lr 3e-4",
                        ]
                    ),
                }
            },
        }
    },
    "TrainJob": {
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "numNodes": 4,
                "numProcPerNode": 8,
                "image": "registry.example.com/train:1",
                "command": ["torchrun", "train.py"],
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
                "env": [{"name": "EPOCHS", "value": "3"}],
            },
        }
    },
    "JobSet": {
        "spec": {
            "failurePolicy": {"maxRestarts": 3},
            "replicatedJobs": [
                {"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 2, "template": pod(TORCHRUN)}}}
            ],
        }
    },
}
RAY = {
    "spec": {
        "entrypoint": "python train.py",
        "rayClusterSpec": {
            "headGroupSpec": {"template": pod(["ray"], image="rayproject/ray:2")},
            "workerGroupSpecs": [
                {"groupName": "gpu_workers", "replicas": 3, "template": pod(["ray"], image="rayproject/ray:2")}
            ],
        },
    }
}


def manifest(kind: str, body: dict) -> str:
    return yaml.safe_dump({"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "My_Run"}, **body})


@pytest.mark.parametrize("kind", MANIFESTS)
def test_runs_of_torchrun_become_values_of_ddp_run(jobgen, kind):
    result = jobgen("from", "-", stdin=manifest(kind, MANIFESTS[kind]))
    assert result.exit_code == 0, result.stderr
    values = yaml.safe_load(result.stdout)
    assert (values["nodes"], values["gpusPerNode"], values["env"]) == (4, 8, {"EPOCHS": "3"})
    assert values.get("procsPerNode", 8) == 8 and values["program"]["image"] == "registry.example.com/train:1"
    (workload,) = [
        each for each in objects(rendered("ddp-run", result.stdout)) if each["kind"] in ("Job", "StatefulSet", "JobSet")
    ]
    assert workload["kind"] == {"StatefulSet": "StatefulSet", "JobSet": "JobSet"}.get(kind, "Job")
    assert "train" in json.dumps(workload)


def rendered(chart: str, values: str) -> str:
    done = template("helm", chart, values.encode())
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_what_is_lost_is_reported_with_its_place(jobgen):
    result = jobgen("from", "-", stdin=manifest("JobSet", MANIFESTS["JobSet"]))
    assert "$.spec.failurePolicy: not taken over [lost]" in result.stderr
    result = jobgen("from", "-", stdin=manifest("StatefulSet", MANIFESTS["StatefulSet"]))
    assert "pip install x" in result.stderr
    body = {"spec": {"template": pod(TORCHRUN, volumes=[{"name": "data"}], hostNetwork=True)}}
    body["spec"]["template"]["spec"]["containers"] += [{"name": "sidecar"}]
    body["spec"]["template"]["spec"]["containers"][0] |= {"volumeMounts": [], "env": [{"name": "T", "valueFrom": {}}]}
    result = jobgen("from", "-", stdin=manifest("Job", body))
    lost = [line.split(": ")[3] for line in result.stderr.splitlines() if line.endswith("[lost]")]
    spec = "$.spec.template.spec"
    assert set(lost) == {
        f"{spec}.volumes",
        f"{spec}.hostNetwork",
        f"{spec}.containers[1]",
        f"{spec}.containers[0].volumeMounts",
        f"{spec}.containers[0].env[0]",
    }


def test_ray_becomes_a_group_with_a_head_and_workers(jobgen):
    result = jobgen("from", "-", stdin=manifest("RayJob", RAY))
    assert result.exit_code == 0, result.stderr
    values = yaml.safe_load(result.stdout)
    assert {name: task["numNodes"] for name, task in values["tasks"].items()} == {"head": 1, "gpu-workers": 3}
    assert "python train.py" in values["tasks"]["head"]["run"] and values["primaryTasks"] == ["head"]
    assert "head-0.my-run:6379" in values["tasks"]["gpu-workers"]["run"]
    assert "JobSet" in {each["kind"] for each in objects(rendered("job-group", result.stdout))}


def test_several_replicated_jobs_become_a_group(jobgen):
    body = copy.deepcopy(MANIFESTS["JobSet"])
    body["spec"]["replicatedJobs"].append({"name": "ps", "template": {"spec": {"template": pod(["serve", "a b"])}}})
    result = jobgen("from", "-", stdin=manifest("JobSet", body))
    tasks = yaml.safe_load(result.stdout)["tasks"]
    assert {name: task["numNodes"] for name, task in tasks.items()} == {"w": 4, "ps": 1}
    assert tasks["ps"]["run"] == "serve 'a b'\n" and tasks["w"]["accelerator"] == {"types": ["H100"], "count": 8}
    assert objects(rendered("job-group", result.stdout))


def test_one_replicated_job_without_torch_becomes_a_group(jobgen):
    part = {"name": "w", "replicas": 3, "template": {"spec": {"template": pod(["sleep", "9"])}}}
    result = jobgen("from", "-", stdin=manifest("JobSet", {"spec": {"replicatedJobs": [part]}}))
    assert yaml.safe_load(result.stdout)["tasks"]["w"]["numNodes"] == 3, result.stderr
    assert objects(rendered("job-group", result.stdout))


def test_a_runtime_that_has_the_image_leaves_no_blank_key(jobgen):
    body = copy.deepcopy(MANIFESTS["TrainJob"])
    del body["spec"]["trainer"]["image"]
    result = jobgen("from", "-", stdin=manifest("TrainJob", body))
    assert "image" not in yaml.safe_load(result.stdout)["program"] and "set program.image" in result.stderr
    assert objects(rendered("ddp-run", result.stdout))


def test_a_ray_worker_of_several_hosts_has_a_rank_for_each(jobgen):
    body = copy.deepcopy(RAY)
    body["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["numOfHosts"] = 4
    result = jobgen("from", "-", stdin=manifest("RayJob", body))
    assert yaml.safe_load(result.stdout)["tasks"]["gpu-workers"]["numNodes"] == 12


def test_fields_around_a_pod_are_lost_by_name(jobgen):
    labelled = {**pod(["serve"]), "metadata": {"labels": {"a": "b"}}}
    part = {
        "name": "w",
        "dependsOn": [{"name": "ps", "status": "Ready"}],
        "template": {"spec": {"backoffLimit": 0, "template": labelled}},
    }
    parts = [part, {"name": "ps", "template": {"spec": {"template": pod(["serve"])}}}]
    result = jobgen("from", "-", stdin=manifest("JobSet", {"spec": {"replicatedJobs": parts}}))
    for path in ("dependsOn", "template.spec.backoffLimit", "template.spec.template.metadata.labels"):
        assert f"$.spec.replicatedJobs[0].{path}: " in result.stderr
    body = copy.deepcopy(MANIFESTS["PyTorchJob"])
    body["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    assert "Worker.restartPolicy: " in jobgen("from", "-", stdin=manifest("PyTorchJob", body)).stderr


def test_an_elastic_job_becomes_a_run_of_a_fixed_size(jobgen):
    body = copy.deepcopy(MANIFESTS["ElasticJob"])
    body["spec"] |= {"optimizeMode": "single-job"}
    body["spec"]["replicaSpecs"]["worker"]["restartCount"] = 3
    body["spec"]["replicaSpecs"]["dlrover-master"] = {"template": pod(["x"])}
    result = jobgen("from", "-", stdin=manifest("ElasticJob", body))
    values = yaml.safe_load(result.stdout)
    assert (values["program"]["args"], values["maxRestartsInPlace"]) == (["train.py", "--lr", "3e-4"], 3)
    assert values["nodes"] == 4  # and not between 2 and 4
    lost = {line.split(": ")[3] for line in result.stderr.splitlines() if line.endswith("[lost]")}
    replicas = "$.spec.replicaSpecs"
    command = f"{replicas}.worker.template.spec.containers[0].command"
    assert lost == {"$.spec.optimizeMode", f"{replicas}.worker.restartCount", f"{replicas}.dlrover-master", command}
    assert "--exclude-straggler" in result.stderr and "--network-check" in result.stderr


@pytest.mark.parametrize("role", ["ps", "chief", "evaluator"])
def test_roles_other_than_workers_of_an_elastic_job_are_refused(jobgen, role):
    body = copy.deepcopy(MANIFESTS["ElasticJob"])
    body["spec"]["replicaSpecs"][role] = {"replicas": 2, "template": pod(["python", "-m", "estimator"])}
    result = jobgen("from", "-", stdin=manifest("ElasticJob", body))
    (error,) = [line for line in result.stderr.splitlines() if ": error: " in line]
    assert result.exit_code == 1 and f"$.spec.replicaSpecs.{role}: " in error and "job-group" in error


@pytest.mark.parametrize(
    ("command", "args", "processes"),
    [
        (TORCHRUN, ["train.py", "--lr", "3e-4"], 8),
        (SCRIPT, ["-m", "train", "--epochs", "3"], 8),
        (["python3", "-m", "torch.distributed.run", "--standalone", "a.py"], ["a.py"], None),
        (["/opt/conda/bin/torchrun", "--nproc-per-node=gpu", "a.py"], ["a.py"], None),
        (["python", "a.py", "-x"], ["a.py", "-x"], None),
        (["dlrover-run", "--auto_tunning", "--node_unit", "2", "--nproc_per_node=2", "a.py"], ["a.py"], 2),
        (["python", "-m", "dlrover.trainer.torch.elastic_run", "--numa-affinity", "a.py"], ["a.py"], None),
        (["sh", "-c", "cd /app && python a.py | tee log"], ["a.py"], None),
        (["deepspeed", "a.py"], None, None),
        (["sh", "-c", "echo 'unfinished"], None, None),
        ([], None, None),
    ],
)
def test_command_lines_are_read(command, args, processes):
    found = parse(command)
    assert (found and (found.args, found.processes)) == (None if args is None else (args, processes))


@pytest.mark.parametrize(
    "text",
    [
        "kind: Deployment\nspec: {}\n",
        "kind: Job\n",
        "- a\n",
        "",
        "a: [\n",
        manifest("Job", {"spec": {"template": pod(["sleep", "1"])}}),
        manifest("Job", {"spec": {"template": pod([])}}),
        manifest("RayJob", {"spec": {"entrypoint": "python a.py", "clusterSelector": {"ray.io/cluster": "c"}}}),
        yaml.safe_dump(
            {
                "kind": "JobSet",
                "metadata": {"name": "x" * 60},
                "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": pod(["serve"])}}}]},
            }
        ),
        manifest("Job", {"spec": {"template": pod(TORCHRUN)}}) * 1 + "---\n" + manifest("Job", {"spec": {}}),
    ],
)
def test_what_cannot_be_converted_is_refused(jobgen, text):
    result = jobgen("from", "-", stdin=text)
    assert (result.exit_code, result.stdout) == (1, "") and ": error: " in result.stderr


TOKEN = "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH1"
# Place in the pod template -> what is planted there.
PLANTED = {
    "variable by its name": (("env", 0), {"name": "WANDB_API_KEY", "value": "s3cret-value"}),
    "variable by its text": (("env", 0), {"name": "LOGIN", "value": f"x {TOKEN}"}),
    "script": (("command",), ["bash", "-c", f"export HF_TOKEN={TOKEN}; torchrun t.py"]),
    "argument": (("command",), ["torchrun", "t.py", f"--token={TOKEN}"]),
    "two arguments": (("command",), ["torchrun", "t.py", "--api-key", "0123456789abcdef0123456789abcdef"]),
    "arguments": (("args",), ["--auth", TOKEN]),
    "image": (("image",), "https://user:s3cretpassw0rd@registry.example.com/a:1"),
}


@pytest.mark.parametrize("place", PLANTED)
def test_credentials_are_refused_and_not_repeated(jobgen, place):
    body = {"spec": {"template": pod(TORCHRUN)}}
    path, planted = PLANTED[place]
    target = body["spec"]["template"]["spec"]["containers"][0]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = planted
    result = jobgen("from", "-", stdin=manifest("Job", body))
    assert (result.exit_code, result.stdout) == (1, "") and "credential" in result.stderr
    assert not [part for part in ("s3cret", TOKEN, "0123456789abcdef") if part in result.stderr]


def test_a_credential_in_an_entry_point_is_refused(jobgen):
    body = copy.deepcopy(RAY)
    body["spec"]["entrypoint"] = f"HF_TOKEN={TOKEN} python t.py"
    result = jobgen("from", "-", stdin=manifest("RayJob", body))
    assert (result.exit_code, result.stdout) == (1, "") and TOKEN not in result.stderr


def test_damaged_manifests_never_cause_an_internal_error(jobgen):
    chance = random.Random(1)
    cases = [(kind, body) for kind, body in [*MANIFESTS.items(), ("RayJob", RAY)] for _ in range(FUZZ)]
    for kind, body in cases:
        damaged = copy.deepcopy(body)
        places = list(walk(damaged))
        parent, key = chance.choice(places)
        parent[key] = chance.choice([None, 7, "text", [], {}, [None], {"a": None}, True, [[1]], -1, "a$b'"])
        result = jobgen("from", "-", stdin=manifest(kind, damaged))
        assert result.exit_code in (0, 1), (kind, key, parent[key], result.stderr)


def walk(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield value, key
        yield from walk(each)


def _of_py_torch_job(jobgen, **changed) -> str:
    """Return the notes for the PyTorchJob without nprocPerNode, with `changed` fields of the Worker's container."""
    body = copy.deepcopy(MANIFESTS["PyTorchJob"])
    del body["spec"]["nprocPerNode"]
    body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0] |= changed
    return jobgen("from", "-", stdin=manifest("PyTorchJob", body)).stderr


def test_the_fields_in_which_workers_differ_are_named(jobgen):
    shown = _of_py_torch_job(jobgen, imagePullPolicy="Always", env=[])
    assert "Worker: env, imagePullPolicy of its container differ from Master" in shown
    assert "differ from Master" not in _of_py_torch_job(jobgen)


def test_a_python_program_of_one_process_for_each_pod_has_a_note(jobgen):
    note = "starts one process in each pod, and torchrun one for each of 8 GPUs: 32 in place of 4. To keep 4, set"
    assert f"{note} procsPerNode: 1" in _of_py_torch_job(jobgen)
    assert "procsPerNode" not in jobgen("from", "-", stdin=manifest("PyTorchJob", MANIFESTS["PyTorchJob"])).stderr
    body = copy.deepcopy(MANIFESTS["PyTorchJob"])
    del body["spec"]["nprocPerNode"]
    for kind in body["spec"]["pytorchReplicaSpecs"].values():
        kind["template"] = pod(TORCHRUN)
    assert "procsPerNode" not in jobgen("from", "-", stdin=manifest("PyTorchJob", body)).stderr
