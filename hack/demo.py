"""`make demo`: test every node, then start a group whose tasks find each other, on a real
Kubernetes.
"""

from __future__ import annotations

import json
import sys
import time

from hack import test_cluster
from hack.cluster_mode import Mode, mode
from hack.paths import CACHE, REPO, ToolError, main, run, step

NAMESPACE = "gpu-charts-demo"
NODE_PODS = "app.kubernetes.io/instance=accept,app.kubernetes.io/component=node"
GROUP = "values-examples/find-each-other/group.yaml"


class Demo:
    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        repository, _, tag = environment["WORKER_IMAGE"].rpartition(":")
        self.image = ["--set", f"image.repository={repository}", "--set", f"image.tag={tag}"]

    def kubectl(self, *arguments: str) -> str:
        return run("kubectl", "--namespace", NAMESPACE, *arguments, env=self.environment, cwd=REPO)

    def pods(self, selector: str) -> list[dict]:
        return json.loads(self.kubectl("get", "pods", f"--selector={selector}", "--output=json"))[
            "items"
        ]

    def fresh_namespace(self) -> None:
        with step(f"a fresh namespace, {NAMESPACE}"):
            self.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
            self.kubectl("create", "namespace", NAMESPACE)

    def accept(self) -> bool:
        """Test every node and print one line per node. True if all passed."""
        nodes = len(json.loads(self.kubectl("get", "nodes", "--output=json"))["items"])
        command = f"helm install accept charts/gpu-accept --set device=cpu,nodes={nodes} --namespace {NAMESPACE}"
        with step(command):
            run(*command.split(), *self.image, env=self.environment, cwd=REPO)
            self.wait_for_reports()
        rows = [("NODE", "VERDICT", "COMPUTE", "ALL-REDUCE", "LOSS DROP", "REASON")]
        for pod in self.pods(NODE_PODS):
            name = pod["metadata"]["name"]
            report = json.loads(
                self.kubectl("exec", name, "-c", "report", "--", "cat", "/reports/report.json")
            )
            numbers = {
                m["name"]: f"{m['value']:.3g} {m['unit']}"
                for c in report["checks"]
                for m in c["measurements"]
            }
            verdict = report["verdict"] + (
                " (CPU rehearsal)" if report["requested"]["device"] == "cpu" else ""
            )
            measured = [
                numbers.get(name, "-") for name in ("gemm_fp32", "all_reduce_busbw", "loss_drop")
            ]
            rows.append((report["node"], verdict, *measured, report["reason"]))
        print_table(rows)
        return len(rows) > 1 and all(row[1].startswith("PASS") for row in rows[1:])

    def wait_for_reports(self, deadline_s: float = 300) -> None:
        """Wait until every node's pod holds a report, good or bad: the pod then runs, ready or not."""
        end = time.monotonic() + deadline_s
        while True:
            status = json.loads(
                self.kubectl("get", "daemonset/accept-gpu-accept", "--output=json")
            )["status"]
            wanted = status["desiredNumberScheduled"] if status.get("observedGeneration") else 0
            phases = [pod["status"]["phase"] for pod in self.pods(NODE_PODS)]
            if wanted and phases == ["Running"] * wanted:
                return
            if time.monotonic() > end:
                raise ToolError(
                    f"after {deadline_s:g} s the pods of accept are {phases}; expected: {wanted} Running"
                )
            time.sleep(1)

    def group(self) -> bool:
        """Start the example group and print what each task found. True if every rank succeeded."""
        convert = [sys.executable, "-m", "jobgen", "to-values", GROUP]
        install = [
            "helm",
            "install",
            "group",
            "charts/job-group",
            "--namespace",
            NAMESPACE,
            "--values",
            "-",
        ]
        with step(f"jobgen to-values {GROUP} | {' '.join(install)}"):
            values = run(*convert, env=self.environment, cwd=REPO)
            run(*install, *self.image, input=values, env=self.environment, cwd=REPO)
            self.kubectl("wait", "jobset", "--all", "--for=condition=Completed", "--timeout=180s")
        rows = [("TASK", "NODE", "FOUND")]
        pods = sorted(
            self.pods("app.kubernetes.io/instance=group"), key=lambda pod: pod["spec"]["hostname"]
        )
        for pod in pods:
            lines = self.kubectl("logs", pod["metadata"]["name"], "-c", "task").splitlines()
            found = [line.removeprefix("FOUND ") for line in lines if line.startswith("FOUND ")]
            for number, line in enumerate(found or [""]):
                first = (
                    (pod["spec"]["hostname"], pod["spec"]["nodeName"]) if number == 0 else ("", "")
                )
                rows.append((*first, line))
        print_table(rows)
        return bool(pods) and all(pod["status"]["phase"] == "Succeeded" for pod in pods)


def print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print()
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    print(flush=True)


def entry() -> None:
    print(
        "A cluster of two nodes, the acceptance of its nodes, and a group of programs that find each other."
    )
    cold = mode() is Mode.LOCAL and not any((CACHE / "tools").glob("kubernetes-*"))
    print(
        "15 to 30 minutes on two cores, because it builds Kubernetes once"
        if cold
        else "About 2 minutes",
        flush=True,
    )
    environment = test_cluster.prepare(tests=False)
    demo = Demo(environment)
    demo.fresh_namespace()
    passed = [demo.accept(), demo.group()]
    print("Look around:")
    ours = mode() is not Mode.EXISTING
    if ours:
        print(f"  export KUBECONFIG={environment['KUBECONFIG']} PATH={test_cluster.BIN}:$PATH")
    print(f"  kubectl --namespace {NAMESPACE} get pods,jobsets -o wide")
    print(f"  kubectl --namespace {NAMESPACE} logs daemonset/accept-gpu-accept -c accept")
    print("Stop: " + ("make cluster-down" if ours else f"kubectl delete namespace {NAMESPACE}"))
    if not all(passed):
        raise ToolError("a node or a task failed: see the tables above")


if __name__ == "__main__":
    main(entry)
