"""Environment variables: envs become text, secrets become names. Messages never contain a value."""

import re

from jobgen.contract import ACCEPTS
from jobgen.group import GroupDocument, name_of


def env(task: GroupDocument) -> dict[str, str]:
    """Return the task's variables as text."""
    values = {}
    for name, value in task.fields.get("envs", {}).items():
        path = ("envs", name)
        if value is None:
            message = (
                f"has no value; write one, or pass --env {name}, --env {name}=VALUE or "
                f"--secret {name}"
            )
            task.report("missing-value", path, message)
        elif name in ACCEPTS and not re.fullmatch(ACCEPTS[name][1], str(value)):
            task.report("bad-value", path, f"must be {ACCEPTS[name][0]}")
        elif name not in task.options.env:
            text = task.document.source_text(path)
            if text is not None and text != str(value):
                message = "YAML reads a number, true/false or a date, so the variable becomes "
                message += "different text; put it in quotes to keep it as written"
                task.note(path, message, "yaml-surprise")
        values[name] = str(value)
    return values


def secrets(task: GroupDocument) -> list[str]:
    """Return the names of the task's secret variables, in the order of the file."""
    given = task.fields.get("secrets", {})
    names: dict[str, None] = {}
    for index, key in enumerate(given):
        name = name_of(key)
        path = ("secrets", key if isinstance(given, dict) else index)
        if name in task.fields.get("envs", {}):
            message = f"{name} is also in envs; keep one of the two"
            task.report("conflicting-fields", path, message, key=True)
        if isinstance(given, dict) and given[key] is not None:
            if key.startswith("secrets:"):
                message = (
                    "a name with the prefix secrets: takes no value; remove the prefix or the value"
                )
                task.report("bad-value", path, message, key=True)
            elif given[key] == "":
                message = (
                    "optional, because it is empty in the file; if the variable is not "
                    "exported, the command that"
                )
                task.note(path, f"{message} creates the Secret leaves it empty", "secret-value")
            else:
                message = (
                    "not used, because the value comes from the Secret; remove it from the file"
                )
                task.note(path, message, "secret-value")
        names[name] = None
    for key in task.fields.get("managed_secrets", ()):
        names[name_of(key)] = None
    return list(names | dict.fromkeys(task.options.secrets))
