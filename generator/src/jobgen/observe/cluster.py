"""Reader of a cluster, by kubectl's configuration. The only part of jobgen that uses the Kubernetes client.

It sends GET requests only. Objects stay as the API returns them: the client's classes for a thousand pods would cost
seconds.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import click

from jobgen.observe import judge
from jobgen.observe.snapshot import GROUP, RUN, Plan, Snapshot, plan

_MISSING = "needs the Kubernetes client: pip install 'jobgen[cluster]'"
_THREADS = 8
_PAGE = 500  # objects of one answer
_TIMEOUT_S = 60
_LOG_BYTES = 1 << 16
_JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"
_WORKLOADS = ("/apis/kueue.x-k8s.io/v1beta2", "/apis/kueue.x-k8s.io/v1beta1")


class ClusterError(click.ClickException):
    """The cluster did not answer as needed; the message has the reason."""

    exit_code = 2


class Cluster:
    """One namespace of a cluster. `context` is one of kubectl's; the namespace defaults to that of the context."""

    def __init__(self, context: str | None = None, namespace: str | None = None):
        try:
            from kubernetes import client, config
        except ImportError:
            raise ClusterError(_MISSING) from None
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it would print each further try
        settings = client.Configuration()
        # The client reads KUBECONFIG once, when it is imported.
        chosen = {"context": context, "config_file": os.environ.get("KUBECONFIG") or None}
        try:
            config.load_kube_config(**chosen, client_configuration=settings, persist_config=False)
            namespace = namespace or _namespace(config, **chosen)
        except config.ConfigException as error:
            raise ClusterError(f"no cluster: {error}") from None
        settings.connection_pool_maxsize = _THREADS
        self.namespace = namespace or "default"
        self.settings = settings
        self.pool = client.ApiClient(settings).rest_client.pool_manager

    def snapshot(self, name: str) -> Snapshot:
        """Read the objects of the group, or of the release, with this name."""
        found = self._read(name, f"job-group/name={name}")
        if found.is_empty:
            charts = f"app.kubernetes.io/name in ({GROUP},{RUN})"
            found = self._read(name, f"app.kubernetes.io/instance={name},{charts}")
        run = plan(found)
        if run is None:
            return found
        self._read_reasons(found, run)
        for pod, container in judge.wanted_logs(found):
            found.logs[pod] = self.log(pod, container)
        return found

    def _read(self, name: str, selector: str) -> Snapshot:
        found = Snapshot(name)
        core, batch, apps = (
            f"{api}/namespaces/{self.namespace}" for api in ("/api/v1", "/apis/batch/v1", "/apis/apps/v1")
        )
        lists = {
            "configmaps": (f"{core}/configmaps", selector),
            "pods": (f"{core}/pods", selector),
            "jobsets": (f"{_JOBSETS}/namespaces/{self.namespace}/jobsets", selector),
            "jobs": (f"{batch}/jobs", selector),
            "statefulsets": (f"{apps}/statefulsets", selector),
        }
        with ThreadPoolExecutor(_THREADS) as threads:
            reading = {field: threads.submit(self._list, *each, found) for field, each in lists.items()}
        for field, each in reading.items():
            setattr(found, field, each.result())
        return found

    def _read_reasons(self, found: Snapshot, run: Plan) -> None:
        """Read what explains ranks that do not run yet: Jobs of the JobSet, warnings, and Kueue's workloads."""
        if run.owner and "replicatedJobs" in run.owner["spec"] and len(found.pods) < len(run.ranks):
            path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
            found.jobs += self._list(path, f"jobset.sigs.k8s.io/jobset-name={run.id}", found)
        phases = {each.phase for each in judge.judge(found).ranks}
        if phases & {"missing", "pending", "starting", "queued"}:
            path = f"/api/v1/namespaces/{self.namespace}/events"
            events = self._list(path, "", found, fieldSelector="type=Warning")
            found.events = [each for each in events if each["involvedObject"].get("name", "").startswith(run.id)]
        if "queued" in phases:
            found.workloads = self._workloads(found, run)

    def _workloads(self, found: Snapshot, run: Plan) -> list[dict]:
        for api in _WORKLOADS:
            items = self._list(f"{api}/namespaces/{self.namespace}/workloads", "", found)
            mine = [each for each in items if run.id in (each["metadata"]["name"], *_owners(each))]
            if mine:
                return mine
        return []

    def _list(self, path: str, selector: str, found: Snapshot, **query: str) -> list[dict]:
        """Return every object of a list. A kind that the cluster lacks has none."""
        items: list[dict] = []
        query |= {"limit": str(_PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            answer = self._get(path, query)
            if answer.status == 404:
                return items
            if answer.status == 403:
                found.unreadable.append(path.rpartition("/")[2])
                return items
            page = json.loads(_checked(answer).data)
            items += page["items"]
            query["continue"] = page["metadata"].get("continue") or ""
            if not query["continue"]:
                return items

    def log(self, pod: str, container: str, **query: str) -> str:
        """Return the output of a container; empty if it has none."""
        query = {"container": container, "limitBytes": str(_LOG_BYTES), **query}
        answer = self._get(self._log_path(pod), query)
        return answer.data.decode("utf-8", "replace") if answer.status == 200 else ""

    def follow(self, pod: str, container: str, **query: str) -> Iterator[str]:
        """Yield the lines of a container as they appear, until it ends."""
        answer = self._get(self._log_path(pod), {"container": container, "follow": "true", **query}, stream=True)
        if answer.status != 200:
            return
        rest = b""
        for part in answer.stream(1 << 16):
            *lines, rest = (rest + part).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
        if rest:
            yield rest.decode("utf-8", "replace")

    def _log_path(self, pod: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{quote(pod)}/log"

    def _get(self, path: str, query: dict[str, str], stream: bool = False):
        headers = {"accept": "*/*" if path.endswith("/log") else "application/json"}
        for each in self.settings.auth_settings().values():
            if each["in"] == "header" and each["value"]:
                headers[each["key"]] = each["value"]
        import urllib3

        timeout = urllib3.Timeout(connect=10, read=None if stream else _TIMEOUT_S)
        try:
            return self.pool.request(
                "GET", self.settings.host + path, fields=query, headers=headers, timeout=timeout,
                preload_content=not stream, retries=2,
            )  # fmt: skip
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            raise ClusterError(f"{self.settings.host} does not answer: {reason}") from None


def _checked(answer):
    if answer.status != 200:
        try:
            message = json.loads(answer.data)["message"]
        except (ValueError, KeyError, TypeError):
            message = f"HTTP status {answer.status}"
        raise ClusterError(f"the cluster refuses to answer: {message}")
    return answer


def _owners(item: dict) -> list[str]:
    return [each["name"] for each in item["metadata"].get("ownerReferences") or []]


def _namespace(config, context: str | None, config_file: str | None) -> str | None:
    """Return the namespace of kubectl's context."""
    contexts, active = config.list_kube_config_contexts(config_file)
    chosen = next((each for each in contexts if each["name"] == context), active)
    return chosen["context"].get("namespace")
