"""The field volumes as values: existing claims, and volumes that are created for each pod."""

from jobgen.group import GroupDocument
from jobgen.quantities import quantity


def convert(task: GroupDocument) -> list[dict]:
    return [_volume(task, *each) for each in task.fields.get("volumes", {}).items()]


def _volume(task: GroupDocument, mount_path: str, given: str | dict) -> dict:
    path = ("volumes", mount_path)
    given = {"name": given} if isinstance(given, str) else given
    if "size" not in given:
        message = f'the PersistentVolumeClaim "{given["name"]}" must exist in the namespace of the '
        task.note(path, f"{message}release, as ReadWriteMany if several nodes mount it")
        volume = {"claimName": given["name"], "subPath": given.get("sub_path")}
    else:
        if task.fields.get("num_nodes", 1) > 1:
            message = (
                "not supported: a volume with a size belongs to one pod, and this task has "
                "several. Name an existing ReadWriteMany claim, or write an ephemeral volume in "
                "config.kubernetes.pod_config"
            )
            task.report("volume-of-one-node", path, message)
        config = given.get("config", {})
        volume = {
            "size": quantity(given["size"], "gi"),
            "storageClassName": config.get("storage_class_name"),
            "accessMode": config.get("access_mode"),
            "labels": given.get("labels"),
        }
    return {"mountPath": mount_path, **{key: value for key, value in volume.items() if value}}
