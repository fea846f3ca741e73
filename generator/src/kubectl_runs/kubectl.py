"""Objects and logs of a cluster, read by the user's own kubectl."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import click

from kubectl_runs.runs import Objects

THREADS = 8
# Kind -> its name for kubectl.
KINDS = {
    "configmaps": "configmaps",
    "jobsets": "jobsets.jobset.x-k8s.io",
    "jobs": "jobs.batch",
    "statefulsets": "statefulsets.apps",
    "daemonsets": "daemonsets.apps",
    "pods": "pods",
}
# What explains why ranks wait: the Jobs of JobSets, warnings, and Kueue's view.
REASONS = {
    "children": ("jobs.batch", "-l", "jobset.sigs.k8s.io/jobset-name"),
    "events": ("events", "--field-selector=type=Warning"),
    "workloads": ("workloads.kueue.x-k8s.io",),
}


class KubectlError(click.ClickException):
    """kubectl could not do what it was asked for; the message has its words."""

    exit_code = 2


class Kubectl:
    """One namespace of a cluster. `unreadable` has the kinds that the user may not read."""

    def __init__(self, namespace: str | None, context: str | None):
        self.flags = ["--namespace", namespace] if namespace else []
        self.flags += ["--context", context] if context else []
        self.unreadable: list[str] = []

    def start(self, *arguments: str, **streams: object) -> subprocess.Popen:
        try:
            return subprocess.Popen(["kubectl", *self.flags, *arguments], **streams)
        except FileNotFoundError:
            raise KubectlError("kubectl is not in PATH") from None

    def objects(self, kind: str, *more: str) -> list[dict]:
        """All objects of a kind; none of a kind that the cluster lacks or the user may not read."""
        arguments = ["get", kind, "--output=json", "--request-timeout=60s", *more]
        process = self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate()
        if process.returncode == 0:
            return json.loads(out)["items"]
        said = err.decode(errors="replace").strip()
        if "(Forbidden)" in said:
            self.unreadable.append(kind.partition(".")[0])
        elif "the server doesn't have a resource type" not in said:
            raise KubectlError(said.rpartition("\n")[2])  # before it are those of its retries
        return []

    def read(self, selector: str) -> Objects:
        """Lists of objects by kind, and those of REASONS."""
        self.unreadable.clear()
        wanted = {kind: (full, "-l", selector) for kind, full in KINDS.items()} | REASONS
        with ThreadPoolExecutor(THREADS) as threads:
            reading = {name: threads.submit(self.objects, *each) for name, each in wanted.items()}
        return {name: each.result() for name, each in reading.items()}

    def logs(self, pod: str, *flags: str) -> subprocess.Popen:
        """Started reader of a pod's output, which may have none yet."""
        return self.start("logs", pod, *flags, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
