"""Build the pinned Go tools: python3 -m hack.deps.go_tools helm kubernetes … (no name: all of
them).

Each folder of hack/go is one Go module. Its `tool` lines name the programs to build, go.mod and
go.sum pin them. A module is built again only when those files, main.go or the Go release change.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

from hack.paths import BIN, CACHE, REPO, ToolError, built_once, main, run, step

MODULES = REPO / "hack" / "go"
# Names of programs whose package is named otherwise: two releases of Helm side by side, and all of
# Argo CD in `cmd`.
RENAMED = {"argocd": {"cmd": "argocd"}, "helm3": {"helm": "helm3"}}
# Folders that are copied beside the programs: module -> Go module, folder in it, name of the copy.
SHIPPED = {
    "argocd": [("github.com/argoproj/argo-cd/v3", "manifests/crds", "crds")],
    "flux": [
        (f"github.com/fluxcd/{name}-controller", "config/crd/bases", f"crds/{name}")
        for name in ("source", "kustomize", "helm")
    ],
    **{
        name: [("sigs.k8s.io/jobset", "charts/jobset", "chart")]
        for name in ("jobset", "jobset-oldest")
    },
    **{
        name: [("sigs.k8s.io/kueue", "charts/kueue", "chart")] for name in ("kueue", "kueue-oldest")
    },
    "kwok": [("sigs.k8s.io/kwok", "kustomize/stage", "stages")],
}


def go(*args: str, module: str) -> str:
    # CGO off: the controllers run in images that hold one file. Go fetches the release that a
    # module requires.
    return run(
        "go",
        *args,
        cwd=MODULES / module,
        env={"GOTOOLCHAIN": "auto", **os.environ, "CGO_ENABLED": "0"},
    )


def source(module: str, package: str) -> dict:
    """Version and Dir of the sources of a pinned Go module, downloaded if necessary."""
    return json.loads(go("mod", "download", "-json", package, module=module))


def packages(module: str) -> dict[str, str]:
    """Binary name -> Go package, from the module's `tool` lines; a module with a main.go builds
    itself.
    """
    if (MODULES / module / "main.go").exists():
        return {module: "."}
    tools = json.loads(go("mod", "edit", "-json", module=module)).get("Tool") or []
    names = RENAMED.get(module, {})
    return {names.get(Path(t["Path"]).name, Path(t["Path"]).name): t["Path"] for t in tools}


def ldflags(module: str) -> str:
    """Version stamps: without them Kubernetes reports v0.0.0 and Helm 3 v1.20, and both check
    versions.
    """
    stamps = {}
    if module.startswith("kubernetes"):
        version = go("list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes", module=module).strip()
        minor = version.split(".")[1]
        values = {
            "gitVersion": version,
            "gitMajor": "1",
            "gitMinor": minor,
            "gitTreeState": "clean",
        }
        stamps = {f"k8s.io/component-base/version.{name}": value for name, value in values.items()}
    if module == "helm3":
        minor = go("list", "-m", "-f", "{{.Version}}", "k8s.io/client-go", module=module).split(
            "."
        )[1]
        where = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"
        stamps = {f"{where}Major": "1", f"{where}Minor": minor}
    return "-s -w " + " ".join(f"-X {name}={value}" for name, value in stamps.items())


def digest(module: str) -> str:
    files = sorted(p for p in (MODULES / module).iterdir() if p.suffix in {".mod", ".sum", ".go"})
    parts = [
        run("go", "version").encode(),
        ldflags(module).encode(),
        *(p.read_bytes() for p in files),
    ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def build(module: str) -> Path:
    """Return the folder with the module's binaries, building them if needed."""
    target = CACHE / "tools" / f"{module}-{digest(module)}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"build-{module}.lock", "w") as lock:
        fcntl.flock(
            lock, fcntl.LOCK_EX
        )  # two builds of one module would fight over the same scratch folder
        if not target.exists():
            compile_into(target, module)
        link(target)
    return target


def compile_into(target: Path, module: str) -> None:
    with step(f"building {module}"), built_once(target) as scratch:
        scratch.mkdir(parents=True)
        # One command for all: it compiles what they share once, and links one while it compiles
        # another.
        found = packages(module)
        folder = (
            scratch / module if "." in found.values() else f"{scratch}/"
        )  # of a main.go, or of packages
        go("build", "-ldflags", ldflags(module), "-o", str(folder), *found.values(), module=module)
        for name, package in found.items():
            if package != ".":
                (scratch / Path(package).name).rename(scratch / name)
        for package, folder, name in SHIPPED.get(module, []):
            shipped = Path(source(module, package)["Dir"]) / folder
            shutil.copytree(shipped, scratch / name, copy_function=shutil.copyfile)


def link(target: Path) -> None:
    """Point CACHE/bin at the binaries in use."""
    BIN.mkdir(parents=True, exist_ok=True)
    for binary in (p for p in target.iterdir() if p.is_file()):
        fresh = BIN / f".{binary.name}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(binary)
        fresh.replace(BIN / binary.name)


def names() -> list[str]:
    return sorted(p.name for p in MODULES.iterdir() if (p / "go.mod").exists())


def entry() -> None:
    wanted = sys.argv[1:] or names()
    unknown = set(wanted) - set(names())
    if unknown:
        raise ToolError(
            f"no such tool module: {', '.join(sorted(unknown))}; the modules are: {', '.join(names())}"
        )
    for module in wanted:
        build(module)


if __name__ == "__main__":
    main(entry)
