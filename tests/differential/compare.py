"""Differences between jobgen and SkyPilot for one group."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import yaml

SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
BYTES |= {unit + "i": 1024 ** (power + 1) for power, unit in enumerate("KMGTP")}
KUBERNETES = (None, "kubernetes")


@dataclass(frozen=True)
class Difference:
    """One difference: an error of jobgen (code), an error of SkyPilot (theirs), or a value (field)."""

    task: str | None
    path: str = ""
    code: str = ""
    field: str = ""
    ours: object = None
    theirs: object = None
    value: object = None  # of the field that jobgen refuses
    key: str | None = None  # and its name

    def __str__(self) -> str:
        where = f"task {self.task!r}" if self.task else "header"
        if self.field:
            return f"{where}: {self.field}: jobgen has {self.ours!r}, SkyPilot {self.theirs!r}"
        if self.code:
            return f"{where}: only jobgen refuses: {self.path}: {self.ours} [{self.code}]"
        return f"only SkyPilot refuses: {self.theirs}"


def differences(text: str, result, answer: dict) -> list[Difference]:
    """Return the differences between jobgen's result and SkyPilot's answer for a text."""
    if result.text is None and answer["accepted"]:
        documents = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
        # Each error alone refuses the file, so each one needs a reason.
        errors = [diagnostic for diagnostic in result.diagnostics if diagnostic.severity == "error"]
        # YAML drops the first value of a duplicate key, so an error inside it is no difference of
        # its own.
        twice = [(each.scope, f"{each.path}.") for each in errors if each.code == "duplicate-key"]
        kept = [
            each
            for each in errors
            if not any(each.scope == t and each.path.startswith(p) for t, p in twice)
        ]
        return [_refusal(diagnostic, documents) for diagnostic in kept]
    if result.text is None:
        return []
    if not answer["accepted"]:
        return [Difference(None, theirs=answer["error"])]
    return list(_fields(yaml.safe_load(result.text), answer))


def _refusal(diagnostic, documents: list) -> Difference:
    """Return the difference with the value that the diagnostic is about, read by another parser."""
    scope = diagnostic.scope  # header, task "NAME" or task 3
    task = json.loads(scope.removeprefix("task ")) if scope.endswith('"') else None
    named = [each for each in documents[1:] if isinstance(each, dict) and each.get("name") == task]
    value, key = named[0] if task is not None and named else documents[0], None
    for word, quoted, index in re.findall(
        r"\.([\w-]+)|\[(\"(?:[^\"\\]|\\.)*\")\]|\[(\d+)\]", diagnostic.path
    ):
        key = word or (json.loads(quoted) if quoted else int(index))
        missing = not isinstance(value, dict | list) or (
            isinstance(value, list) and key >= len(value)
        )
        value = None if missing else value.get(key) if isinstance(value, dict) else value[key]
    return Difference(
        task, diagnostic.path, diagnostic.code, ours=diagnostic.message, value=value, key=key
    )


def _fields(values: dict, answer: dict) -> Iterator[Difference]:
    tasks = values["tasks"]
    header = {
        "name": (values["name"], answer["name"]),
        "primaries": (
            sorted(values.get("primaryTasks", [])),
            sorted(set(answer["primaries"] or [])),
        ),
        "inter_connection": (
            values.get("interConnection", True),
            answer["inter_connection"] is not False,
        ),
        "tasks": (list(tasks), [task["name"] for task in answer["tasks"]]),
    }
    yield from _unequal(None, header)
    for task in answer["tasks"]:
        if task["name"] in tasks:
            yield from _unequal(task["name"], _task(tasks[task["name"]], task, answer["delays"]))


def _unequal(task: str | None, fields: dict[str, tuple]) -> Iterator[Difference]:
    for field, (ours, theirs) in fields.items():
        if ours != theirs:
            yield Difference(task, field=field, ours=ours, theirs=theirs)


def _task(ours: dict, theirs: dict, delays: dict[str, str]) -> dict[str, tuple]:
    requests = ours.get("resources", {}).get("requests", {})
    template = ours.get("podTemplate", {})
    gpus = ours.get("accelerator") or {"types": [], "count": 0}
    on_kubernetes = [each for each in theirs["alternatives"] if each["cloud"] in KUBERNETES]
    their_gpus = [next(iter(each["accelerators"].items()), (None, 0)) for each in on_kubernetes]
    return {
        "num_nodes": (ours["numNodes"], theirs["num_nodes"]),
        "envs": (ours.get("env", {}), theirs["envs"]),
        "secrets": (sorted(ours.get("secrets", [])), sorted(set(theirs["secrets"]))),
        "delay": (
            ours.get("terminationDelaySeconds", 0),
            seconds(delays.get(theirs["name"], delays.get("default", "0"))),
        ),
        # SkyPilot's number is written with a G behind it.
        **_size("cpus", requests.get("cpu"), on_kubernetes, 1),
        **_size("memory", requests.get("memory"), on_kubernetes, 10**9),
        "disk_size": (
            [quantity(requests.get("ephemeral-storage"))],
            _all(on_kubernetes, "disk_size", lambda each: each and each * 10**9),
        ),
        "accelerator types": (
            _lower(gpus["types"]),
            _lower({name for name, _ in their_gpus if name}),
        ),
        "accelerator count": (
            [gpus["count"]],
            _distinct(math.ceil(count) for _, count in their_gpus),
        ),
        "image_id": ([ours.get("image")], _all(on_kubernetes, "image")),
        "labels": _labels(
            template.get("metadata", {}).get("labels", {}), _all(on_kubernetes, "labels")
        ),
        "priority_class": (
            [template.get("spec", {}).get("priorityClassName")],
            _all(on_kubernetes, "priority_class"),
        ),
        "job_recovery": (
            [_our_recovery(ours.get("recovery", {}))],
            _all(on_kubernetes, "recovery", _their_recovery),
        ),
    }


def _size(field: str, ours: str | None, on_kubernetes: list[dict], unit: int) -> dict[str, tuple]:
    """Compare a size that the task names, or the one that SkyPilot requests without it."""
    theirs = _all(on_kubernetes, field, lambda each: each and number(each) * unit)
    if theirs != [None]:
        return {field: ([quantity(ours)], theirs)}
    default = _all(on_kubernetes, f"default_{field}", lambda each: number(str(each)) * unit)
    return {f"default {field}": ([quantity(ours)], default)}


def _labels(ours: dict, theirs: list[dict]) -> tuple[list, list]:
    """Compare SkyPilot's labels only: jobgen's include those of config.kubernetes."""
    wanted = {key for each in theirs for key in each}
    return [{key: value for key, value in ours.items() if key in wanted}], theirs


def _lower(types) -> list[str]:
    """Return names of GPU types in one case: a chart may know a type in another one."""
    return sorted({each.lower() for each in types})


def _all(alternatives: list[dict], field: str, convert=lambda each: each) -> list:
    """Return the distinct values of a field: one, if the alternatives agree."""
    return _distinct(convert(each[field]) for each in alternatives)


def _distinct(values) -> list:
    found: list = []
    for each in values:
        if each not in found:
            found.append(each)
    return found


def number(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text.rstrip("+").replace("_", ""))


def quantity(text: str | None) -> Decimal | None:
    """A Kubernetes quantity, such as 500m or 2Gi."""
    if text is None:
        return None
    amount, unit = re.fullmatch(r"([0-9.]+)(.*)", text).groups()
    return Decimal(amount) / 1000 if unit == "m" else Decimal(amount) * BYTES[unit]


def seconds(duration: str) -> int:
    amount, unit = re.fullmatch(r"([0-9]+)([a-zA-Z]?)\s*", duration).groups()
    return int(amount) * SECONDS[unit.lower()]


def _our_recovery(recovery: dict) -> tuple:
    return recovery.get("maxRestartsOnErrors", 0), tuple(recovery.get("recoverOnExitCodes", []))


def _their_recovery(recovery: dict) -> tuple:
    codes = recovery.get("recover_on_exit_codes", [])
    return recovery.get("max_restarts_on_errors", 0), tuple(
        codes if isinstance(codes, list) else [codes]
    )
