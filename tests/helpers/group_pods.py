"""Start groups on a cluster and inspect their ranks."""

import datetime
import json
import re
from pathlib import Path

import pytest

from tests.helpers.kube import SEEDS, Namespace, by_host, jobgen, phases, wait_until

each_workload = pytest.mark.parametrize("workload", ["jobset", "jobs"])


def launch(
    space: Namespace,
    group: str | Path,
    *settings: str,
    name: str | None = None,
    release: str = "grp",
) -> str:
    """jobgen to-values | helm install grp charts/job-group -f - ; returns the group's name.

    `group`: a seed, another file without local files, or a text.
    """
    renamed = ["--name", name] if name else []
    text = group if "\n" in str(group) else (SEEDS / group).read_text()
    values = jobgen("to-values", "-", *renamed, input=text)
    space.install(release, "job-group", *settings, values=values)
    return name or re.search(r"^name: (\S+)$", values, re.MULTILINE)[1]


def install(
    space: Namespace, tasks: dict, *settings: str, release: str = "grp", **top: object
) -> str:
    """Values written by hand, as a person would; returns the notes."""
    values = {"schemaVersion": 1, "name": "g", "tasks": tasks, **top}
    return space.install(
        release, "job-group", *settings, values=json.dumps(values, ensure_ascii=False)
    )


def all_succeed(space: Namespace, *hosts: str, release: str = "grp") -> dict[str, dict]:
    """The pods of these ranks, after all have ended well."""
    pods = space.wait_for_end(release, ranks=len(hosts))
    assert phases(pods) == dict.fromkeys(hosts, "Succeeded"), space.why(release)
    return by_host(pods)


def jobset_ends(space: Namespace, release: str = "grp") -> str:
    """Completed or Failed."""

    def terminal_state():
        found = space.objects("jobset", f"app.kubernetes.io/instance={release}")
        return found[0].get("status", {}).get("terminalState", "") if found else ""

    return wait_until(terminal_state, f"the JobSet of {release} ended")


def rank(space: Namespace, host: str, release: str = "grp") -> dict | None:
    """The pod of a rank that is not being deleted."""
    return by_host(
        [pod for pod in space.pods(release) if "deletionTimestamp" not in pod["metadata"]]
    ).get(host)


def output(space: Namespace, host: str, release: str = "grp") -> str:
    """Output of a rank's task."""
    pod = rank(space, host, release)
    started = pod and pod["status"].get("containerStatuses", [{}])[0].get("state", {}).keys() & {
        "running",
        "terminated",
    }
    return space.logs(pod, "task") if started else ""


def wait_for_output(space: Namespace, host: str, text: str, deadline_s: float = 180) -> str:
    def found():
        words = output(space, host)
        return words if text in words else ""

    return wait_until(found, f"{host} prints {text!r}", deadline_s)


def printed_at(space: Namespace, host: str, text: str, release: str = "grp") -> float:
    """Time at which a rank's task printed the first line with `text`, in seconds."""
    pod = rank(space, host, release)["metadata"]["name"]
    lines = space.kubectl("logs", pod, "-c", "task", "--timestamps").splitlines()
    stamp = next(line.split()[0] for line in lines if text in line)
    return datetime.datetime.fromisoformat(stamp).timestamp()


def started_at(space: Namespace, host: str, release: str = "grp") -> float:
    """Time at which the barrier released the rank."""
    return printed_at(space, host, "starts attempt=", release)


def end(pod: dict) -> dict:
    return pod["status"]["containerStatuses"][0]["state"]["terminated"]


def exit_code(pod: dict) -> int:
    return end(pod)["exitCode"]


def execute(space: Namespace, host: str, *command: str) -> str:
    return space.kubectl(
        "exec", rank(space, host)["metadata"]["name"], "-c", "task", "--", *command
    )


def uninstall(space: Namespace, release: str = "grp"):
    """helm uninstall, and wait until nothing of it is left."""
    space.helm("uninstall", release)
    kinds, ours = (
        "pods,jobs,jobset,services,configmaps,networkpolicies",
        f"app.kubernetes.io/instance={release}",
    )
    wait_until(lambda: not space.objects(kinds, ours), f"all objects of {release} are gone", 90)
