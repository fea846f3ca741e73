"""values-examples/fabrics: each file renders, fits the schemas of Kubernetes, and docs/clusters.md
describes it.
"""

import pytest
import yaml

from tests.helpers.rendering import REPO, invalid, objects, output

FABRICS = {path.stem: path for path in (REPO / "values-examples/fabrics").glob("*.yaml")}
SIDECARS = {"gke-tcpx": "tcpx-daemon", "gke-tcpxo": "tcpxo-daemon"}


@pytest.fixture(scope="module")
def renders():
    return {name: output("helm", "ddp-run", path.read_bytes()) for name, path in FABRICS.items()}


def pod(text: str) -> dict:
    (job,) = [item for item in objects(text) if item["kind"] == "Job"]
    return job["spec"]["template"]


def test_every_fabric_renders_what_kubernetes_accepts(renders):
    assert invalid("---\n".join(renders.values()), "-skip=ComputeDomain") == ""  # of a driver


def test_memory_can_be_locked_where_the_fabric_needs_it(renders):
    """Linux gives an added capability to a program of user 0 only."""
    for fabric, text in renders.items():
        spec = pod(text)["spec"]
        for each in [*spec["containers"], *spec.get("initContainers", [])]:
            user = {**spec["securityContext"], **each["securityContext"]}
            assert "add" not in user.get("capabilities", {}) or user["runAsUser"] == 0, fabric


def test_a_daemon_of_the_fabric_is_a_sidecar_with_its_devices(renders):
    for fabric, name in SIDECARS.items():
        template = pod(renders[fabric])
        (daemon,) = [each for each in template["spec"]["initContainers"] if each["name"] == name]
        assert daemon["restartPolicy"] == "Always", "the Job would not end"
        devices = yaml.safe_load(
            template["metadata"]["annotations"][f"devices.gke.io/container.{name}"]
        )
        assert {"path": "/dev/nvidiactl"} in devices


def test_networks_of_a_pod_are_json(renders):
    for fabric in ("gke-tcpx", "gke-tcpxo", "gke-rdma", "gke-gb200"):
        annotations = pod(renders[fabric])["metadata"]["annotations"]
        networks = yaml.safe_load(annotations["networking.gke.io/interfaces"])
        assert networks[0] == {"interfaceName": "eth0", "network": "default"}


@pytest.mark.parametrize("fabric", ["compute-domain", "gke-gb200"])
def test_a_claim_of_the_installed_domain_reaches_pod_and_container(renders, fabric):
    (domain,) = [item for item in objects(renders[fabric]) if item["kind"] == "ComputeDomain"]
    spec = pod(renders[fabric])["spec"]
    (claim,) = spec["resourceClaims"]
    assert (
        claim["resourceClaimTemplateName"]
        == domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    )
    assert spec["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]


def test_nvlink_between_nodes_keeps_a_run_in_one_clique():
    """NVLink ends there, and a ComputeDomain follows its pods wherever they are."""
    for fabric, path in FABRICS.items():
        for option, wanted in (
            ("nameOverride=", ["nvidia.com/gpu.clique"]),
            ("placement.topologyKey=", []),
        ):
            text = output("helm", "ddp-run", path.read_bytes(), "--set", option)
            affinity = pod(text)["spec"]["affinity"].get("podAffinity", {})
            terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
            keys = [term["topologyKey"] for term in terms]
            assert keys == (wanted if "ComputeDomain" in path.read_text() else []), fabric
