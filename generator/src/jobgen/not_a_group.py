"""Recognition of files that are not job groups, with advice for each kind."""

from __future__ import annotations

from jobgen.yaml_loader import Document

START = "the first document of a group has `name` and `execution: parallel`, and every further document is a task"
TASK_FIELDS = {"run", "setup", "resources", "num_nodes", "envs", "workdir", "file_mounts"}
VOLUMES = ("k8s-pvc", "k8s-hostpath", "runpod-network-volume")


def explain(documents: list[Document]) -> str | None:
    """Return why this is not a job group; None if it is one."""
    values = [document.value for document in documents]
    first = values[0] if values else None
    if all(value is None for value in values):
        return f"the file is empty; {START}"
    if first is None:
        return f"the first document is empty; {START}"
    if not isinstance(first, dict):
        what = "a list" if isinstance(first, list) else "plain text"
        return f"this is {what}; {START}"
    execution = first.get("execution")
    if execution is not None and execution != "serial":
        if all(value is None for value in values[1:]):
            return "the group has no task; add at least one document after the header and a line `---`"
        return None
    return _kind(first, values, execution, documents)


def _kind(first: dict, values: list, execution: object, documents: list[Document]) -> str:
    if "apiVersion" in first and "kind" in first:
        kind = first["kind"] if isinstance(first["kind"], str) and first["kind"].isalnum() else "object"
        ways = "apply it with `kubectl apply -f`, or, if it starts a training, convert it with `jobgen from`"
        return f"this is a Kubernetes manifest ({kind}); {ways}"
    if "apiVersion" in first and ("appVersion" in first or "version" in first):
        return "this is a Chart.yaml; install its folder with `helm install`"
    if "schemaVersion" in first and "tasks" in first:
        return "these are already values of the chart job-group; pass them to helm with -f"
    if isinstance(first.get("services"), dict):
        return "this is a Compose file; write each service as a task"
    if first.get("type") in VOLUMES:
        command = "`jobgen volume FILE | kubectl apply -f -`"
        return f"this is a SkyPilot volume; create it with {command}, and name it in a task's volumes"
    if "service" in first and TASK_FIELDS & first.keys():
        return "this is a SkyPilot service; run it with `sky serve up`, or write a Deployment"
    if len(values) == 1 and documents[0].is_flow_style:
        return f"this is JSON, which can contain one document only; {START}"
    tasks = [value for value in values[1:] if value is not None]
    if tasks and execution == "serial":
        return "this is a pipeline, whose tasks run one after another; with `execution: parallel` they start together"
    if tasks and set(first) <= {"name", "execution"}:
        return "this is a pipeline, whose tasks run one after another; add `execution: parallel` to start them together"
    if tasks:
        return f"the first document must be the header, with `name` and `execution: parallel`; {START}"
    if TASK_FIELDS & first.keys():
        return "this is a single task; put a header before it: `name: NAME`, `execution: parallel` and a line `---`"
    if set(first) <= {"name", "execution"}:
        return "this is a header without tasks; add `execution: parallel`, a line `---` and at least one task"
    return START
