"""gitops/argocd/argocd-cm.yaml: the health scripts as the settings of Argo CD that hold them."""

from __future__ import annotations

from pathlib import Path

from hack.paths import REPO

HEALTH = REPO / "gitops/argocd/health"
HEAD = """\
# Settings of Argo CD: the health of JobSets and Jobs. Written by `make generate` from health/*/*/health.lua.
# kubectl --namespace argocd patch configmap argocd-cm --patch-file argocd-cm.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: argocd-cm
  labels:
    app.kubernetes.io/name: argocd-cm
    app.kubernetes.io/part-of: argocd
data:
"""


def config_map() -> str:
    return HEAD + "".join(map(setting, sorted(HEALTH.glob("*/*/health.lua"))))


def setting(script: Path) -> str:
    group, kind = script.parts[-3:-1]
    lines = (f"    {line}".rstrip() for line in script.read_text().splitlines())
    return "\n".join([f"  resource.customizations.health.{group}_{kind}: |", *lines, ""])
