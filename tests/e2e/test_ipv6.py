"""Nodes, pods and Services with addresses of IPv6 only: `make test-ipv6` runs this and a slice of
the other tests.
"""

import ipaddress
import os

import pytest

from tests.e2e.test_gpu_accept import accept, passes, served

pytestmark = pytest.mark.skipif(
    os.environ.get("IP_FAMILY") != "ipv6", reason="needs IP_FAMILY=ipv6; run by `make test-ipv6`"
)


def are_ipv6(addresses: list[str]) -> bool:
    return bool(addresses) and all(ipaddress.ip_address(each).version == 6 for each in addresses)


def test_nodes_pods_and_services_have_no_address_of_ipv4(namespace):
    accept(namespace)
    passes(namespace)
    assert "PASS" in served(namespace, "/report.json")
    internal = [
        each
        for node in namespace.cluster.nodes()
        for each in node["status"]["addresses"]
        if each["type"] == "InternalIP"
    ]
    assert are_ipv6([each["address"] for each in internal])
    assert are_ipv6(
        [each["ip"] for pod in namespace.objects("pods") for each in pod["status"]["podIPs"]]
    )
    services = [service["spec"] for service in namespace.objects("services")]
    assert services and {family for spec in services for family in spec["ipFamilies"]} == {"IPv6"}
    assert are_ipv6([spec["clusterIP"] for spec in services if spec["clusterIP"] != "None"])
