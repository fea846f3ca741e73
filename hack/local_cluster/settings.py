"""Names, addresses and folders of the local cluster. All that it creates carries the name
`gpu-charts` or `gpuc`.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

STATE = Path("/var/lib/gpu-charts")  # data of etcd, containerd and kubelet, keys, logs, kubeconfig
RUN = Path("/run/gpu-charts")  # sockets; short, because a Unix socket path holds 107 characters
LOGS = STATE / "logs"
PKI = STATE / "pki"
KUBECONFIG = STATE / "kubeconfig"

CGROUP = "gpu-charts"
BRIDGE = "gpuc0"
# IP_FAMILY=ipv6: nodes, pods and Services have addresses of IPv6 only.
IP_FAMILY = os.environ.get("IP_FAMILY", "ipv4")
# Networks of nodes, pods and Services, and the size of the part of the pods' network that a node
# has.
NETWORKS = {
    "ipv4": ("10.250.0.0/24", "10.244.0.0/16", "10.96.0.0/16", 24),
    "ipv6": ("fd00:10:250::/64", "fd00:10:244::/56", "fd00:10:96::/112", 64),
}
if IP_FAMILY not in NETWORKS:
    raise SystemExit(f"IP_FAMILY={IP_FAMILY}: set it to {' or '.join(NETWORKS)}")
NODE_NETWORK, POD_NETWORK, SERVICE_NETWORK = map(ipaddress.ip_network, NETWORKS[IP_FAMILY][:3])
HOST_IP = str(NODE_NETWORK[1])
API_SERVICE_IP = str(SERVICE_NETWORK[1])
ETCD = "https://127.0.0.1:12379"  # only the API server of the same host uses it
# KUBERNETES=kubernetes-oldest: another release, by the name of its folder in hack/go. The folders
# that end as this one hold the newest JobSet and Kueue that it takes: Kubernetes 1.29 and 1.30
# refuse the CRD of JobSet 0.11, whose rule has the field `namespace`, and 1.29 refuses those of
# Kueue 0.18, which have `selectableFields`.
KUBERNETES = os.environ.get("KUBERNETES", "kubernetes")
JOBSET, KUEUE = (KUBERNETES.replace("kubernetes", name) for name in ("jobset", "kueue"))
# PARTS=demo: without Kueue and kube-router, which the demo does not use; they take minutes to
# build.
PARTS = os.environ.get("PARTS", "all")
# FEATURES=gang: what Kubernetes 1.37 has, and leaves off by default.
FEATURES = os.environ.get("FEATURES", "")


@dataclass(frozen=True)
class Node:
    """Node number `index`, counted from 1."""

    index: int

    @property
    def name(self) -> str:
        return f"n{self.index}"

    @property
    def namespace(self) -> str:
        return f"gpuc-{self.name}"

    @property
    def veth(self) -> str:
        return f"gpuc-v{self.index}"

    @property
    def ip(self) -> str:
        return str(NODE_NETWORK[10 + self.index])

    @property
    def pods(self) -> str:
        return str(list(POD_NETWORK.subnets(new_prefix=NETWORKS[IP_FAMILY][3]))[self.index])

    @property
    def folder(self) -> Path:
        return STATE / self.name

    @property
    def run(self) -> Path:
        return RUN / self.name

    @property
    def socket(self) -> Path:
        return self.run / "containerd.sock"


def at(ip: str, port: int) -> str:
    """IP:PORT, as in a URL."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


API_SERVER = f"https://{at(HOST_IP, 6443)}"


def nodes() -> list[Node]:
    """NODES=n, 2 by default, as multi-node tests require."""
    return [Node(i) for i in range(1, int(os.environ.get("NODES", "2")) + 1)]


def advertised_cpus() -> int:
    """NODE_CPUS=n that every node advertises, so that groups for large machines fit on a small one."""
    return int(os.environ.get("NODE_CPUS", "64"))


def advertised_memory() -> int:
    """NODE_MEMORY=n GiB that every node advertises. The real use of all pods must fit into the
    machine.
    """
    return int(os.environ.get("NODE_MEMORY", "128"))
