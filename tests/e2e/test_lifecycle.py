"""Every scenario of values-examples with Helm 4 and 3, from a package: installed, upgraded, rolled
back, uninstalled.

What its pods do is the subject of other tests; most of them need GPUs, and wait. `make
test-lifecycle` runs all of them, the other tests a few.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from hack.deps import go_tools
from tests.helpers.kube import REPO, Namespace, new_namespace, run, wait_until
from tests.helpers.processes import ran
from tests.helpers.rendering import CHARTS, HELMS, chart_of, jobgen

EXAMPLES = REPO / "values-examples"
SLICE = (
    "ddp-run-finetune-helm",
    "gpu-accept-quick-helm",
    "train-eval-helm",
    "train-eval-helm3",
)  # ids of tests
KINDS = "daemonsets,deployments,statefulsets,jobs,jobsets,services,configmaps,networkpolicies,persistentvolumeclaims"
RELEASE = "run"


@dataclass(frozen=True)
class Example:
    name: str
    chart: str
    file: Path

    @property
    def values(self) -> str:
        return (
            jobgen(self.file) if self.file.name == "group.yaml" else self.file.read_bytes()
        ).decode()


def examples() -> list[Example]:
    groups = {file.parent: file for file in EXAMPLES.glob("*/group.yaml")}
    written = {file.parent: file for file in EXAMPLES.glob("*/values.yaml")}
    found = [
        Example(folder.name, chart_of(file), file) for folder, file in (written | groups).items()
    ]
    found += [
        Example(f"fabrics/{file.stem}", "ddp-run", file) for file in EXAMPLES.glob("fabrics/*.yaml")
    ]
    folders = {folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()}
    assert {each.name.split("/")[0] for each in found} == folders
    return sorted(found, key=lambda each: each.name)


def chosen() -> list:
    every = {f"{each.name}-{helm}": (each, helm) for each in examples() for helm in HELMS}
    assert every.keys() >= {*SLICE}
    marks = {name: () if name in SLICE else pytest.mark.lifecycle for name in every}
    return [pytest.param(*case, id=name, marks=marks[name]) for name, case in every.items()]


def live(space: Namespace) -> set[tuple[str, str]]:
    """Objects that no other object owns, without what Kubernetes adds to a namespace."""
    found = [item for item in space.objects(KINDS) if not item["metadata"].get("ownerReferences")]
    return {(item["kind"], item["metadata"]["name"]) for item in found} - {
        ("ConfigMap", "kube-root-ca.crt")
    }


def becomes(space: Namespace, manifest: str):
    """Wait until the namespace has the objects of the manifest, and no others."""
    wanted = {
        (item["kind"], item["metadata"]["name"]) for item in yaml.safe_load_all(manifest) if item
    }
    assert wanted
    wait_until(lambda: live(space) == wanted, f"exactly {sorted(wanted)}", 90)


@pytest.fixture(scope="session")
def packages(tmp_path_factory) -> dict[str, str]:
    """The package of each chart."""
    folder = tmp_path_factory.mktemp("packages")
    run(
        "helm",
        "package",
        *(str(REPO / "charts" / chart) for chart in CHARTS),
        "--destination",
        str(folder),
    )
    return {chart: str(next(folder.glob(f"{chart}-[0-9]*.tgz"))) for chart in CHARTS}


@pytest.mark.parametrize(("example", "helm"), chosen())
def test_a_scenario_is_installed_changed_rolled_back_and_removed(cluster, packages, example, helm):
    go_tools.build(helm)
    # Fast networks need what the level `restricted` forbids.
    with new_namespace(
        cluster, "privileged" if example.name.startswith("fabrics/") else "restricted"
    ) as space:
        chart, here = packages[example.chart], ("--namespace", space.name)
        image = cluster.helm_image()

        def manifest():
            return run(helm, "get", "manifest", RELEASE, *here)

        # Without objects of drivers, which this cluster does not have.
        image += ["--set-json", "extraObjects=[]"]
        run(helm, "install", RELEASE, chart, *here, *image, "--values", "-", input=example.values)
        first = manifest()
        becomes(space, first)
        run(
            helm, "upgrade", RELEASE, chart, *here, "--reuse-values", "--set-string", "runId=second"
        )
        second = manifest()
        assert second != first
        becomes(space, second)
        run(helm, "rollback", RELEASE, "1", *here)
        assert manifest() == first
        becomes(space, first)
        run(helm, "uninstall", RELEASE, *here)
        wait_until(lambda: not live(space) and not space.objects("pods"), "nothing is left", 120)
        done = ran(helm, "list", "--all", "--short", *here, timeout=60)
        assert done.stdout.strip() == ""
