"""jobgen from: manifests of other launchers as values that job-group renders."""

import copy
import json
import os
import random
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helpers.kube import API_VERSIONS
from tests.helpers.processes import ran
from tests.helpers.rendering import objects, output
from tests.helpers.values_fuzz import at, places

FUZZ = int(os.environ.get("FROM_CASES", 40))  # damaged manifests of each kind
SCRIPTS = int(os.environ.get("FROM_SCRIPTS", 50))


POD = """\
containers:
- name: main
  image: registry.example.com/train:1
  env: [{name: EPOCHS, value: "3"}, {name: MASTER_ADDR, value: x}]
  resources: {requests: {cpu: "4"}, limits: {nvidia.com/gpu: 8}}
nodeSelector: {nvidia.com/gpu.product: H100}
"""


def pod(command, **fields) -> dict:
    spec = yaml.safe_load(POD) | fields
    spec["containers"][0]["command"] = command
    return {"spec": spec}


TORCHRUN = shlex.split(
    "torchrun --nnodes=4 --nproc_per_node 8 --rdzv-backend=c10d train.py --lr 3e-4"
)
SCRIPT = "set -e\npip install x # first\nexec torchrun --node-rank=${HOSTNAME##*-} train.py --tag a#3 2>&1 | tee log\n"
ROLES = {
    kind: {"replicas": count, "template": pod(["python", "-u", "/train.py", "--epochs=3"])}
    for kind, count in (("Master", 1), ("Worker", 3))
}
TRAIN_JOB = """\
runtimeRef: {name: torch-distributed}
trainer:
  numNodes: 4
  numProcPerNode: 8
  image: registry.example.com/train:1
  command: [torchrun, train.py]
  resourcesPerNode: {limits: {nvidia.com/gpu: 8}}
  env: [{name: EPOCHS, value: "3"}]
"""
INDEXED = {"completions": 4, "parallelism": 4, "completionMode": "Indexed"}
PART = {
    "name": "w",
    "replicas": 2,
    "template": {"spec": {"parallelism": 2, "template": pod(TORCHRUN)}},
}
# Kind -> the object's spec.
MANIFESTS = {
    "Job": {**INDEXED, "template": pod(TORCHRUN)},
    "StatefulSet": {"replicas": 4, "serviceName": "t", "selector": {}, "template": pod(TORCHRUN)},
    "PyTorchJob": {"nprocPerNode": "8", "pytorchReplicaSpecs": ROLES},
    "TrainJob": yaml.safe_load(TRAIN_JOB),
    "JobSet": {"failurePolicy": {"maxRestarts": 3}, "replicatedJobs": [PART]},
}


def manifest(kind: str, spec: dict, **metadata) -> str:
    head = {
        "apiVersion": API_VERSIONS.get(kind, "x/v1"),
        "kind": kind,
        "metadata": {"name": "My_Run", **metadata},
    }
    return yaml.safe_dump({**head, "spec": spec})


def job(command=TORCHRUN, **container) -> dict:
    """Spec of a Job of four pods, whose container has these fields, too."""
    template = pod(command)
    template["spec"]["containers"][0] |= container
    return {**INDEXED, "template": template}


def part(name: str, command=("serve",), **fields) -> dict:
    """A replicated Job of a JobSet."""
    return {"name": name, "template": {"spec": {"template": pod([*command])}}, **fields}


def converted(jobgen, kind: str, spec: dict, **metadata) -> tuple[dict, str]:
    """Values, which their chart renders, and the notes."""
    result = jobgen("from", "-", stdin=manifest(kind, spec, **metadata))
    assert result.exit_code == 0, result.stderr
    values = yaml.safe_load(result.stdout)
    assert objects(output("helm", "job-group", values))
    return values, result.stderr


def task_of(values: dict) -> dict:
    (task,) = values["tasks"].values()
    return task


def container_of(task: dict) -> dict:
    return task["podTemplate"]["spec"]["containers"][0]


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_becomes_a_task(jobgen, kind):
    values, _ = converted(jobgen, kind, MANIFESTS[kind])
    task = task_of(values)
    own = container_of(task)
    assert (task["numNodes"], task["accelerator"]) == (4, {"count": 8}) and "train.py" in task[
        "run"
    ]
    assert (own["image"], own["env"]) == (
        "registry.example.com/train:1",
        [{"name": "EPOCHS", "value": "3"}],
    )
    assert task.get("launcher") == (None if kind == "PyTorchJob" else "ddp-launch")
    assert task.get("env") == (
        {"NPROC_PER_NODE": "8"} if kind in ("PyTorchJob", "TrainJob") else None
    )


def test_a_script_becomes_a_group_of_one_task_as_it_is(jobgen):
    values, notes = converted(jobgen, "Job", job(["bash", "-c"], args=[SCRIPT]))
    task = values["tasks"]["my-run"]
    assert (task["run"], task["launcher"], task["numNodes"]) == (SCRIPT, "ddp-launch", 4)
    assert task["accelerator"] == {"count": 8} and "command" not in container_of(task)
    assert "env[1]: MASTER_ADDR is set by the chart" in notes


@pytest.mark.parametrize(
    "words", ["accelerate launch a.py", "python -X dev -m torch.distributed.run a.py"]
)
def test_a_launcher_in_several_words_is_the_launcher(jobgen, words):
    values, _ = converted(jobgen, "Job", job(words.split()))
    assert values["tasks"]["my-run"]["launcher"] == "ddp-launch"


WORDS = ["a", "run#3", "a b", "'q'", '"$HOME"', "$(hostname)", "`id`", "*.txt", "~", "{1,2}", "a\nb", "$((1+1))", "",
         "\\", "> out", "| cat", "&& true", "; echo", "# comment", "$(EPOCHS)", "$$", "$$(EPOCHS)", "ü"]  # fmt: skip


def generated(chance: random.Random) -> list[str]:
    """A command with words that a shell would read in many ways."""
    words = [chance.choice(WORDS) for _ in range(chance.randrange(1, 5))]
    if chance.random() < 0.3:
        return ["torchrun", "train.py", *words]
    script = " ".join(word if chance.random() < 0.5 else shlex.quote(word) for word in words)
    shell = chance.choice([["bash", "-c"], ["sh", "-c"], ["bash", "-ec"], ["/bin/bash", "-c"]])
    return [*shell, f"cd / # go\ntorchrun --nnodes=2 train.py {script}\n"]


def expanded(word: str) -> str:
    """What Kubernetes makes of it, with EPOCHS=3."""
    return word.replace("$$", "\0").replace("$(EPOCHS)", "3").replace("\0", "$")


@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_the_words_of_a_command_arrive(jobgen, tmp_path, seed):
    """The arguments that a stub of torchrun gets, from the container's own command and from the
    values.
    """
    (tmp_path / "torchrun").write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" >>{tmp_path}/got\n')
    (tmp_path / "torchrun").chmod(0o755)
    command = generated(random.Random(seed))
    result = jobgen("from", "-", stdin=manifest("Job", job(command)))
    assert result.exit_code == 0, result.stderr
    values = yaml.safe_load(result.stdout)
    (tmp_path / "run").write_text(task_of(values)["run"])
    words = ["bash", "-c", '. "$0"', str(tmp_path / "run")]
    got = [outcome(tmp_path, each) for each in ([expanded(word) for word in command], words)]
    assert got[0] == got[1], (command, values)


PLACES = """\
- name: SHARD
  valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
- {name: WORLD_SIZE, value: "8"}
- {name: LR, value: "1"}
"""


@pytest.mark.parametrize("variables", [{}, {"MASTER_ADDR": "a-0.rl"}])
def test_a_script_finds_what_kubernetes_would_have_set(jobgen, tmp_path, variables):
    """Its folder, its index, and references to variables, which stay as they are without one."""
    words = [
        "echo $PWD $JOB_COMPLETION_INDEX $SHARD $WORLD_SIZE $0",
        "$(MASTER_ADDR) $(LR) $(JOB_COMPLETION_INDEX)",
    ]
    own = {"workingDir": str(tmp_path), "env": yaml.safe_load(PLACES)}
    values, _ = converted(jobgen, "Job", job(["sh", "-c", *words], **own))
    task = values["tasks"]["my-run"]
    assert "workingDir" not in json.dumps(task["podTemplate"])
    rank = {"PATH": os.environ["PATH"], "SKYPILOT_NODE_RANK": "3", "LR": "1", **variables}
    done = ran("bash", "-c", task["run"], env=rank, cwd="/")
    master = variables.get("MASTER_ADDR", "$(MASTER_ADDR)")
    assert done.stdout == f"{tmp_path} 3 3 8 {master} 1 3\n", done.stderr


def test_labels_of_a_controller_are_noted_and_not_kept(jobgen):
    """Those of a Job as the API server returns it, and Kueue's topology, which a run has as a
    value.
    """
    template = pod(TORCHRUN, terminationGracePeriodSeconds=30, hostNetwork=True)
    template["metadata"] = {
        "labels": {"job-name": "a", "batch.kubernetes.io/job-name": "a", "team": "x"},
        "annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"},
    }
    values, notes = converted(jobgen, "Job", {**INDEXED, "template": template})
    pod_template = task_of(values)["podTemplate"]
    assert pod_template["metadata"] == {"labels": {"team": "x"}}
    assert pod_template["spec"]["terminationGracePeriodSeconds"] == 30
    for key in (
        "job-name",
        "batch.kubernetes.io/job-name",
        "kueue.x-k8s.io/podset-required-topology",
    ):
        assert key in notes, key


def test_deadlines_restarts_and_order_become_values(jobgen):
    values, notes = converted(
        jobgen, "Job", {**job(), "activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 0}
    )
    assert (values["activeDeadlineSeconds"], values["ttlSecondsAfterFinished"]) == (
        60,
        0,
    ) and "Seconds" not in notes
    policy = {"runPolicy": {"ttlSecondsAfterFinished": 5}, **MANIFESTS["PyTorchJob"]}
    assert converted(jobgen, "PyTorchJob", policy)[0]["ttlSecondsAfterFinished"] == 5
    assert task_of(converted(jobgen, "JobSet", MANIFESTS["JobSet"])[0])["recovery"] == {
        "maxRestartsOnErrors": 3
    }
    waits = [{"name": "a", "status": "Ready"}, {"name": "b", "status": "Complete"}]
    parts = [part("a"), part("b"), part("c", dependsOn=waits)]
    group = {"failurePolicy": {"maxRestarts": 2}, "replicatedJobs": parts}
    tasks = converted(jobgen, "JobSet", group)[0]["tasks"]
    assert tasks["c"]["dependsOn"] == {"a": "started", "b": "done"}
    assert tasks["a"]["recovery"]["maxRestartsOnErrors"] == 2
    probe = {"tcpSocket": {"port": 80}}
    parts[0]["template"]["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = probe
    assert converted(jobgen, "JobSet", group)[0]["tasks"]["c"]["dependsOn"]["a"] == "ready"


def test_a_part_that_is_taken_at_one_place_is_not_taken_at_another(jobgen):
    twice = "metadata:\n  labels: &l {team: rl}\n  annotations: *l\n  x: .nan\n"
    text = manifest("Job", job()).replace("metadata:\n", twice, 1)
    result = jobgen("from", "-", stdin=text)
    assert result.exit_code == 0, result.stderr
    assert [
        part for part in ("labels", "annotations", "x") if f"$.metadata.{part}" not in result.stderr
    ] == []


def test_a_job_that_waits_for_a_later_one_is_refused(jobgen):
    parts = [part("a", dependsOn=[{"name": "b", "status": "Complete"}]), part("b")]
    result = jobgen("from", "-", stdin=manifest("JobSet", {"replicatedJobs": parts}))
    assert result.exit_code == 1 and "$.spec.replicatedJobs[0].dependsOn[0]: " in result.stderr


def test_a_container_without_a_command_gets_one(jobgen):
    text = manifest("Job", job([], args=["a b"]))
    result = jobgen("from", "--command", "serve", "--command", "-v", "-", stdin=text)
    assert task_of(yaml.safe_load(result.stdout))["run"] == "serve -v 'a b'\n"


def test_a_name_that_fits_once_is_not_in_the_pods(jobgen):
    values, notes = converted(jobgen, "Job", MANIFESTS["Job"], name="x" * 40)
    assert (values["name"], list(values["tasks"])) == (
        "x" * 40,
        ["node"],
    ) and "$.metadata.name: " in notes


def test_an_object_gets_another_name_and_a_harmless_variable_is_allowed(jobgen):
    harmless = [{"name": "TOKENIZER_KEY", "value": "word-level"}]
    text = manifest("Job", job(["bash", "-c", "serve"], env=harmless), name="x" * 60)
    assert jobgen("from", "-n", "rl", "-", stdin=text).exit_code == 1
    done = jobgen("from", "-n", "rl", "--allow", "TOKENIZER_KEY", "-", stdin=text)
    assert done.exit_code == 0 and list(yaml.safe_load(done.stdout)["tasks"]) == ["rl"]


def outcome(folder: Path, command: list[str]) -> tuple[int, bytes, bytes]:
    (folder / "got").write_bytes(b"")
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "EPOCHS": "3", "HOME": "/", "LANG": "C.UTF-8"}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder
    )
    return done.returncode, done.stdout, (folder / "got").read_bytes()


MARK = "mark-7f3a"


@pytest.mark.parametrize("kind", MANIFESTS)
def test_every_part_is_in_a_value_or_in_a_note(jobgen, kind):
    """A field is added to each mapping of the object in turn, and to each list of mappings an
    entry.
    """
    whole = yaml.safe_load(
        manifest(kind, MANIFESTS[kind], labels={"a": "b"}, annotations={"a": "b"})
    )
    spots = [path for path in places(whole) if isinstance(at(whole, path), dict)]
    spots = [path for path in spots if "resources" not in path and "selector" not in path]
    assert len(spots) > 5
    for path in spots:
        changed = copy.deepcopy(whole)
        at(changed, path)["xMarked"] = MARK
        result = jobgen("from", "-", stdin=yaml.safe_dump(changed))
        parts = [f"{place(path[:count])}: " for count in range(2, len(path) + 1)]
        noted = "xMarked" in result.stderr or any(part in result.stderr for part in parts)
        assert MARK in result.stdout or noted, (path, result.stderr)


def place(path) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def test_what_the_charts_take_of_a_pod_is_kept(jobgen):
    body = {**job(), "backoffLimit": 3}
    spec = body["template"]["spec"]
    claim = {"persistentVolumeClaim": {"claimName": "data"}}
    spec |= {
        "volumes": [{"name": "home", **claim}],
        "runtimeClassName": "nvidia",
        "containers": [*spec["containers"]],
    }
    reference = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    spec["containers"][0] |= {
        "volumeMounts": [{"name": "home", "mountPath": "/data"}, {"name": "x", "mountPath": "/tmp"}]
    }
    kept = [
        reference,
        {"name": "URL", "value": "tcp://$(KEY):80/$$x"},
        {"name": "no.shell", "value": "name"},
    ]
    spec["containers"][0]["env"] = kept
    spec["containers"].append({"name": "sidecar"})
    values, notes = converted(jobgen, "Job", body)
    own = task_of(values)["podTemplate"]["spec"]
    assert own["volumes"] == [{"name": "own-home", **claim}] and own["runtimeClassName"] == "nvidia"
    assert own["containers"][0]["volumeMounts"] == [{"name": "own-home", "mountPath": "/data"}]
    assert own["containers"][0]["env"] == kept
    noted = {line.split(": ")[3] for line in notes.splitlines() if "[lost]: " in line}
    spec = "$.spec.template.spec.containers"
    assert noted == {"$.spec.backoffLimit", f"{spec}[1]", f"{spec}[0].volumeMounts[1]"}


def test_the_queue_is_kept_and_the_namespace_is_noted(jobgen):
    labels = {"kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/priority-class": "high"}
    for kind, body in MANIFESTS.items():
        values, notes = converted(
            jobgen, kind, body, labels=labels, namespace="ml", annotations={"a": "b"}
        )
        assert values["kueue"] == {"queueName": "team-a", "priorityClass": "high"}
        assert "--namespace ml" in notes and "$.metadata.annotations: " in notes
    del labels["kueue.x-k8s.io/queue-name"]
    values, notes = converted(jobgen, "Job", MANIFESTS["Job"], labels=labels)
    assert "kueue" not in values and "priority-class" in notes
    labels = {"kueue.x-k8s.io/queue-name": "team-a"}
    many = {"completions": 20, "parallelism": 20, "template": pod(["serve"])}
    assert converted(jobgen, "Job", many, labels=labels)[0]["workload"] == "jobs"


def test_several_replicated_jobs_become_a_group(jobgen):
    body = copy.deepcopy(MANIFESTS["JobSet"])
    body["replicatedJobs"] += [
        part("ps", ["serve", "a b", "My_Run-w-0-0.x"]),
        part("none", replicas=0),
    ]
    values, notes = converted(jobgen, "JobSet", body)
    assert {name: task["numNodes"] for name, task in values["tasks"].items()} == {"w": 4, "ps": 1}
    assert values["tasks"]["ps"]["run"] == "serve 'a b' My_Run-w-0-0.x\n"
    assert (
        "its pods have other names" in notes
        and "$.spec.replicatedJobs[2]: has no replicas" in notes
    )


def test_the_container_named_pytorch_is_taken_and_the_pod_of_the_workers(jobgen):
    body = copy.deepcopy(MANIFESTS["PyTorchJob"])
    worker = body["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["containers"] = [
        {"name": "log", "command": ["tail"]},
        worker["containers"][0] | {"name": "pytorch"},
    ]
    worker["priorityClassName"] = "high"
    values, notes = converted(jobgen, "PyTorchJob", body)
    task = task_of(values)
    assert task["run"].endswith("\npython -u /train.py --epochs=3\n")
    assert (
        task["podTemplate"]["spec"]["priorityClassName"] == "high" and "Worker's is taken" in notes
    )


def test_a_runtime_that_has_the_image_leaves_no_blank_key(jobgen):
    body = copy.deepcopy(MANIFESTS["TrainJob"])
    del body["trainer"]["image"]
    values, notes = converted(jobgen, "TrainJob", body)
    assert "image" not in container_of(task_of(values)) and "set image" in notes


INIT = {"name": "i", "image": "x", "env": [{"name": "WORLD_SIZE", "value": "2"}]}
ALONE = manifest("Job", {"template": pod(["a"])})
REFUSED = {
    "another kind": "kind: Deployment\nspec: {}\n",
    "no spec": "apiVersion: batch/v1\nkind: Job\n",
    "a list": "- a\n",
    "no command": manifest("Job", job([])),
    "arguments for an image's own command": manifest("Job", job([], args=["--epochs", "3"])),
    "more nodes than a run can have": manifest("Job", {**job(), "parallelism": 2000}),
    "a group file": "name: rl\nexecution: parallel\n---\nname: a\nrun: x\n",
    "a work queue": manifest("Job", {**job(), "completions": 10, "completionMode": "NonIndexed"}),
    "a Job of Volcano": ALONE.replace("batch/v1", "batch.volcano.sh/v1alpha1"),
    "a variable": ALONE.replace("registry.example.com/train:1", "${IMAGE}"),
    "a key that is there twice": ALONE.replace("spec:", "kind: Job\nspec:", 1),
    "a field that Kubernetes does not have": manifest("Job", {"template": pod(["a"], gpus=8)}),
    "a number as a variable": ALONE.replace("'3'", "3"),
    "a name that Kubernetes does not take": manifest(
        "JobSet", {"replicatedJobs": [{**PART, "name": "W_1"}]}
    ),
    "a name that Helm reads as a boolean": manifest("Job", job(), name="True"),
    "a name that is there twice": manifest("JobSet", {"replicatedJobs": [PART, PART]}),
    "a variable that no shell can read": manifest(
        "Job", job(["sh", "-c", "echo $(a.b)"], env=[{"name": "a.b", "value": "c"}])
    ),
    "a variable of torchrun in an init container": manifest(
        "Job", {"template": pod(["a"], initContainers=[INIT])}
    ),
    "a mount without a volume": manifest(
        "Job", job(volumeMounts=[{"name": "no", "mountPath": "/x"}])
    ),
    "a name that is too long": manifest("JobSet", {"replicatedJobs": [part("w")]}, name="x" * 60),
    "two objects": f"{ALONE}---\n{ALONE}",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_converted_is_refused(jobgen, what):
    result = jobgen("from", "-", stdin=REFUSED[what])
    assert (result.exit_code, result.stdout) == (1, "") and ": error[" in result.stderr


TOKEN = "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH1"
# Fields of the container in which it is planted.
PLANTED = yaml.safe_load(f"""
variable by its name: {{env: [{{name: WANDB_API_KEY, value: s3cret-value}}]}}
variable by its text: {{env: [{{name: LOGIN, value: x {TOKEN}}}]}}
script: {{command: [bash, -c, export HF_TOKEN={TOKEN}; torchrun t.py]}}
argument: {{command: [torchrun, t.py, --token={TOKEN}]}}
two arguments: {{command: [torchrun, t.py, --api-key, s3cret6789abcdef0123456789abcdef]}}
arguments: {{args: [--auth, {TOKEN}]}}
image: {{image: 'https://user:s3cretpassw0rd@registry.example.com/a:1'}}
""")


@pytest.mark.parametrize("place", PLANTED)
def test_credentials_are_refused_and_not_repeated(jobgen, place):
    result = jobgen(
        "from", "-", stdin=manifest("Job", job(**{"command": TORCHRUN, **PLANTED[place]}))
    )
    assert (result.exit_code, result.stdout) == (1, "") and "credential" in result.stderr
    assert not [part for part in ("s3cret", TOKEN) if part in result.stderr]


def test_damaged_manifests_never_cause_an_internal_error(jobgen):
    chance = random.Random(1)
    cases = [(kind, body) for kind, body in MANIFESTS.items() for _ in range(FUZZ)]
    for kind, body in cases:
        damaged = copy.deepcopy(body)
        *parents, key = chance.choice(places(damaged))
        parent = at(damaged, parents)
        parent[key] = chance.choice(
            [None, 7, "text", [], {}, [None], {"a": None}, True, [[1]], -1, "a$b'"]
        )
        result = jobgen("from", "-", stdin=manifest(kind, damaged))
        assert result.exit_code in (0, 1), (kind, key, parent[key], result.stderr)
