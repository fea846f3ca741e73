"""Recognition of files that are not job groups, with advice for each kind."""

from jobgen.yaml_loader import Document

START = (
    "the first document of a group has `name` and `execution: parallel`, and every further "
    "document is a task"
)
TASK_FIELDS = {"run", "setup", "resources", "num_nodes", "envs", "workdir", "file_mounts"}
# Fields of the first document -> what the file is, and what to do with it.
KINDS = [
    (
        {"apiVersion", "kind"},
        "a Kubernetes manifest; apply it with `kubectl apply -f`, or convert it with `jobgen from`",
    ),
    (
        {"schemaVersion", "tasks"},
        "already values of the chart job-group; pass them to helm with -f",
    ),
    (
        {"name", "type", "size"},
        "a SkyPilot volume; create a PersistentVolumeClaim of this name and size, and name it in "
        "a task's volumes",
    ),
    ({"service"}, "a SkyPilot service; run it with `sky serve up`, or write a Deployment"),
]


def explain(documents: list[Document]) -> str | None:
    """Return why this is not a job group; None if it is one."""
    values = [document.value for document in documents]
    first = values[0] if values else None
    if not isinstance(first, dict):
        return (
            f"the first document is {'empty' if first is None else 'a list or plain text'}; {START}"
        )
    tasks = [value for value in values[1:] if value is not None]
    if first.get("execution") not in (None, "serial"):
        if tasks:
            return None
        return "the group has no task; add at least one document after the header and a line `---`"
    for fields, kind in KINDS:
        if fields <= first.keys():
            return f"this is {kind}"
    if tasks:
        return (
            f"its tasks run one after another; to start them together, write `execution: "
            f"parallel`: {START}"
        )
    if TASK_FIELDS & first.keys():
        return (
            "this is a single task; put a header before it: `name: NAME`, `execution: "
            "parallel` and a line `---`"
        )
    return START
