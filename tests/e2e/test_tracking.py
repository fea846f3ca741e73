"""Pods of ddp-run report to one run: Pluto's client to the stand-in for its server, and to a real MLflow server.

Both servers run in the cluster. They and the program need TRACK_IMAGE: the worker image with requirements/track.txt.
"""

from __future__ import annotations

import json
import os
import sys

import pytest
import yaml

from tests.helpers.ddp_pods import node_index, node_pods, start
from tests.helpers.kube import REPO, Cluster, Namespace, wait_until

sys.path.insert(0, str(REPO / "tests" / "tracking"))
from pluto_stand_in import KEY, series, terminal

STEPS = 40
# Trains in two attempts. The first one fails on all ranks in the middle, after the checkpoint of step 20.
TRAIN = (
    (REPO / "hack/small_models.py").read_text().partition("if __name__")[0]
    + f"""
import json, os
from torch.optim.optimizer import register_optimizer_step_post_hook
from gpuworker.runtime.process_group import exit_now
from gpuworker.train import train_framework
folder = Path("/tmp/rank-" + os.environ["RANK"])
make(folder / "model")
data = folder / "data.jsonl"
data.write_text((json.dumps({{"text": "to count and to count again"}}) + "\\n") * 64)
steps = []
def fail(*_):
    steps.append(1)
    if len(steps) == 25 and os.environ["ATTEMPT"] == "0":
        raise ValueError("the first attempt")
register_optimizer_step_post_hook(fail)
words = ["--model-local-dir", folder / "model", "--data", data, "--output", "/out", "--epochs", 9, "--batch", 8]
words += ["--save-every", 20, "--set", "logging_steps=1", "--set", "max_steps={STEPS}"]
exit_now(train_framework.main([*map(str, words)]))
"""
)


@pytest.fixture(scope="session")
def track_image() -> str:
    if not os.environ.get("TRACK_IMAGE"):
        pytest.fail("TRACK_IMAGE is not set; run these tests with: make test-e2e", pytrace=False)
    return os.environ["TRACK_IMAGE"]


def serve(space: Namespace, name: str, image: str, port: int, command: list[str], files: str = "") -> None:
    """Start a server with a Service `name` in the namespace. `files` is a ConfigMap to mount at /files."""
    volumes = [{"name": "tmp", "emptyDir": {}}]
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    if files:
        volumes.append({"name": "files", "configMap": {"name": files}})
        mounts.append({"name": "files", "mountPath": "/files"})
    container = {
        "name": "server", "image": image, "command": command, "volumeMounts": mounts,
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "value": "false"}],
        "ports": [{"containerPort": port}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"server": name}},
        "spec": {
            "containers": [container], "volumes": volumes, "securityContext": security,
            "automountServiceAccountToken": False, "enableServiceLinks": False,
        },
    }  # fmt: skip
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"server": name}, "ports": [{"port": port}]},
    }  # fmt: skip
    space.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([pod, service]))
    space.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=240s")


def http_json(space: Namespace, pod: str, url: str, body: dict | None = None) -> dict:
    """GET or POST from inside the server's pod."""
    program = (
        "import sys, urllib.request as u; body = sys.argv[2].encode() or None; "
        "r = u.Request(sys.argv[1], body, {'Content-Type': 'application/json'}); print(u.urlopen(r).read().decode())"
    )
    text = json.dumps(body) if body else ""
    return json.loads(space.kubectl("exec", pod, "--", "python3", "-c", program, url, text))


def train(space: Namespace, image: str, *settings: str) -> dict[int, str]:
    """Run a JobSet of two nodes that fails once and completes. Returns the logs of the last attempt, per node."""
    values = ["workload=jobset", "nodes=2", "maxRestarts=1", *settings]
    start(space, *(word for each in values for word in ("--set", each)), *Cluster(image).helm_image(), program=TRAIN)

    def completed() -> bool:
        return [s for s in space.objects("jobset") if s.get("status", {}).get("terminalState") == "Completed"] != []

    wait_until(completed, "the JobSet completed", 300)
    logs = {node_index(pod): space.logs(pod["metadata"]["name"], "trainer") for pod in node_pods(space)}
    assert sorted(logs) == [0, 1]
    return logs


def test_all_nodes_report_to_one_pluto_run(namespace: Namespace, track_image: str) -> None:
    namespace.kubectl("create", "configmap", "stand-in", f"--from-file={REPO}/tests/tracking/pluto_stand_in.py")
    serve(namespace, "pluto", track_image, 3001, ["python3", "/files/pluto_stand_in.py", "3001"], files="stand-in")
    namespace.kubectl("create", "secret", "generic", "pluto", f"--from-literal=PLUTO_API_KEY={KEY}")
    logs = train(
        namespace, track_image, "env.PLUTO_API_KEY.valueFrom.secretKeyRef.name=pluto",
        "env.PLUTO_API_KEY.valueFrom.secretKeyRef.key=PLUTO_API_KEY", "env.PLUTO_RUN_ID=run-7f3a",
        "env.PLUTO_PROJECT=tests",
        *(f"env.PLUTO_URL_{part}=http://pluto:3001" for part in ("APP", "API", "INGEST", "PY")),
    )  # fmt: skip
    record = http_json(namespace, "pluto", "http://127.0.0.1:3001/stand-in")
    assert list(record["runs"]) == ["1"], "one run for all nodes and both attempts"
    run = record["runs"]["1"]
    assert (run["externalId"], run["project"], run["joined"]) == ("run-7f3a", "tests", 3)
    assert all("tracker=pluto state=started run=1 run_id=run-7f3a resumed=true" in text for text in logs.values())
    assert sorted({*series(run, "loss")}) == list(range(1, STEPS + 1))
    assert terminal(run)[-1] == "COMPLETED" == run["statuses"][-1]


def test_all_nodes_report_to_one_mlflow_run(namespace: Namespace, track_image: str) -> None:
    command = ["python3", "-m", "mlflow", "server", "--host", "0.0.0.0", "--port", "5000", "--workers", "1"]
    command += ["--backend-store-uri", "sqlite:////tmp/mlflow.db", "--artifacts-destination", "/tmp/artifacts"]
    command += ["--allowed-hosts", "mlflow:5000,127.0.0.1:5000"]
    serve(namespace, "mlflow", track_image, 5000, command)
    train(namespace, track_image, "env.MLFLOW_TRACKING_URI=http://mlflow:5000", "env.MLFLOW_EXPERIMENT_NAME=tests")
    api = "http://127.0.0.1:5000/api/2.0/mlflow"
    (experiment,) = [
        each for each in http_json(namespace, "mlflow", f"{api}/experiments/search", {"max_results": 10})["experiments"]
        if each["name"] == "tests"
    ]  # fmt: skip
    (run,) = http_json(namespace, "mlflow", f"{api}/runs/search", {"experiment_ids": [experiment["experiment_id"]]})[
        "runs"
    ]
    assert run["info"]["status"] == "FINISHED"
    url = f"{api}/metrics/get-history?run_id={run['info']['run_id']}&metric_key=loss&max_results=1000"
    steps = {int(point.get("step", 0)) for point in http_json(namespace, "mlflow", url)["metrics"]}
    assert sorted(steps) == list(range(1, STEPS + 1))
