"""Argo CD as processes of this machine, with the cluster of KUBECONFIG as its own cluster."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from hack.deps import go_tools
from tests.helpers.controllers import Programs, definitions
from tests.helpers.kube import REPO, run, wait_until
from tests.helpers.pages import install
from tests.helpers.processes import free_port, ran

NAMESPACE = "argocd"
SETTINGS = REPO / "gitops/argocd"
RESYNC_S = 5
HERE = ("--namespace", NAMESPACE)

BASE = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: argocd-rbac-cm, labels: {app.kubernetes.io/part-of: argocd}}
---
apiVersion: v1
kind: Secret
metadata: {name: argocd-secret, labels: {app.kubernetes.io/part-of: argocd}}
---
apiVersion: argoproj.io/v1alpha1
kind: AppProject
metadata: {name: default}
spec:
  sourceRepos: ["*"]
  destinations: [{namespace: "*", server: "*"}]
  clusterResourceWhitelist: [{group: "*", kind: "*"}]
"""


def kubectl(*words: str, **options) -> str:
    return run("kubectl", *HERE, *words, **options)


class ArgoCD:
    """Start with `running`. `cli` runs a command of argocd against its API server."""

    def __init__(self, folder: Path, charts: Path):
        self.folder, self.programs = folder, Programs(folder)
        self.binary = go_tools.build("argocd") / "argocd"
        self.environment = {
            **os.environ,
            # https://kubernetes.default.svc is the cluster of KUBECONFIG
            "ARGOCD_FAKE_IN_CLUSTER": "true",
            "ARGOCD_GPG_ENABLED": "false",
            "ARGOCD_RECONCILIATION_JITTER": "0s",
            "ARGOCD_APPLICATION_CONTROLLER_SELF_HEAL_TIMEOUT_SECONDS": "1",
            "HOME": str(folder),  # the configuration of the command line
            "TMPDIR": str(folder / "tmp"),
            "HELM_CACHE_HOME": str(folder / "helm"),
            "ARGOCD_PLUGINSOCKFILEPATH": str(folder / "plugins"),
            "CHART": str(charts / "job-group"),  # of the plugin
        }
        (folder / "plugins").mkdir()
        (folder / "tmp").mkdir(parents=True)

    def start(self):
        redis = self.folder / "miniredis.log"
        self.launch("miniredis", go_tools.build("miniredis") / "miniredis", "127.0.0.1:0")
        address = wait_until(lambda: redis.read_text().strip(), "miniredis printed its address", 60)
        repo, self.port = free_port(), free_port()
        common = ("--loglevel", "info", "--logformat", "text")
        # Argo CD renders with the program `helm`, in this release with Helm 3.
        tools = self.folder / "bin"
        tools.mkdir()
        (tools / "helm").symlink_to(go_tools.build("helm3") / "helm3")
        # The repo server runs it for each commit, signed or not.
        sources = Path(go_tools.source("argocd", "github.com/argoproj/argo-cd/v3")["Dir"])
        wrapper = shutil.copyfile(
            sources / "hack/git-verify-wrapper.sh", tools / "git-verify-wrapper.sh"
        )
        wrapper.chmod(0o755)
        install(tools, "jobgen")
        self.environment["PATH"] = f"{tools}:{self.environment['PATH']}"
        self.launch(
            "argocd-cmp-server", self.binary, *common, "--config-dir-path", SETTINGS / "plugin"
        )
        self.launch(
            "argocd-repo-server", self.binary, *common, "--address", "127.0.0.1", "--port", str(repo),
            "--metrics-address", "127.0.0.1", "--metrics-port", "0", "--disable-tls", "--redis", address,
            "--client-ca-path", "",  # its default is refused without TLS
        )  # fmt: skip
        serves = (
            "--repo-server",
            f"127.0.0.1:{repo}",
            "--repo-server-plaintext",
            "--redis",
            address,
        )
        here = ("--namespace", NAMESPACE, "--kubeconfig", os.environ["KUBECONFIG"])
        self.launch(
            "argocd-application-controller", self.binary, *common, *serves, *here, "--metrics-port", "0",
            "--app-resync", str(RESYNC_S), "--persist-resource-health", "--self-heal-timeout-seconds", "1",
        )  # fmt: skip
        self.launch(
            "argocd-applicationset-controller", self.binary, *common, *here, "--metrics-addr", "127.0.0.1:0",
            "--probe-addr", "127.0.0.1:0", "--webhook-addr", "127.0.0.1:0",
            "--argocd-repo-server", f"127.0.0.1:{repo}", "--repo-server-plaintext",
        )  # fmt: skip
        self.launch(
            "argocd-server", self.binary, *common, *serves, *here, "--address", "127.0.0.1", "--port", str(self.port),
            "--metrics-address", "127.0.0.1", "--metrics-port", "0", "--insecure", "--disable-auth",
        )  # fmt: skip
        wait_until(self.answers, "the API server of Argo CD answers", 120)

    def launch(self, name: str, *command: str | Path):
        self.programs.launch(
            name, *command, environment={**self.environment, "ARGOCD_BINARY_NAME": name}
        )

    def answers(self) -> bool:
        return self.programs.all_run() and self.try_cli("app", "list").returncode == 0

    def try_cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.binary, "--server", f"127.0.0.1:{self.port}", "--plaintext", *arguments]
        environment = {**self.environment, "ARGOCD_BINARY_NAME": "argocd"}
        return ran(*command, timeout=300, env=environment)

    def cli(self, *arguments: str) -> str:
        done = self.try_cli(*arguments)
        assert done.returncode == 0, (
            f"argocd {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def sync(self, name: str):
        """Sync by hand; again while Argo CD is at a sync of its own."""
        wait_until(
            lambda: self.try_cli("app", "sync", name).returncode == 0, f"argocd app sync {name}"
        )

    def application(self, name: str, refresh: str = "normal") -> dict | None:
        """The Application after a comparison with the newest commit; None if it does not exist."""
        if refresh:
            mark = f"argocd.argoproj.io/refresh={refresh}"
            ran("kubectl", *HERE, "annotate", "application", name, mark, "--overwrite")
        found = kubectl("get", "application", name, "--ignore-not-found", "--output=json")
        return json.loads(found) if found.strip() else None


def status(application: dict | None) -> tuple[str, str]:
    """(sync, health), for example ("Synced", "Healthy")."""
    found = (application or {}).get("status", {})
    return found.get("sync", {}).get("status", ""), found.get("health", {}).get("status", "")


@contextlib.contextmanager
def running(folder: Path, charts: Path) -> Iterator[ArgoCD]:
    with definitions(sorted((go_tools.build("argocd") / "crds").glob("*-crd.yaml")), "Argo CD"):
        argo = ArgoCD(folder, charts)
        try:
            run("kubectl", "create", "namespace", NAMESPACE)
            kubectl("apply", "-f", "-", input=BASE)
            kubectl("create", "configmap", "argocd-cm")
            kubectl("label", "configmap", "argocd-cm", "app.kubernetes.io/part-of=argocd")
            ours = str(SETTINGS / "argocd-cm.yaml")
            kubectl("patch", "configmap", "argocd-cm", "--patch-file", ours)
            key = json.dumps({"stringData": {"server.secretkey": secrets.token_hex(16)}})
            kubectl("patch", "secret", "argocd-secret", "--patch", key)
            argo.start()
            yield argo
        finally:
            remove(argo)


def remove(argo: ArgoCD):
    """Delete the Applications while Argo CD still runs, because it removes their objects and then
    their finalizers.
    """
    for kind in ("applicationsets", "applications"):
        ran("kubectl", *HERE, "delete", kind, "--all", "--timeout=120s", timeout=150)
    argo.programs.stop()
    left = ran("kubectl", *HERE, "get", "applications", "--output=name").stdout.split()
    for name in left:  # of a test that failed
        patch = ("--type=merge", "--patch", '{"metadata": {"finalizers": null}}')
        ran("kubectl", *HERE, "patch", name, *patch)
    run("kubectl", "delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
