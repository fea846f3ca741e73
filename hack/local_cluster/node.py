"""One node: containerd, kubelet, kube-proxy and kube-router in network, mount and host name
namespaces of its own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from hack.deps import debian
from hack.local_cluster import pki, processes
from hack.local_cluster.settings import (
    CGROUP,
    HOST_IP,
    IP_FAMILY,
    KUBERNETES,
    PARTS,
    PKI,
    POD_NETWORK,
    SERVICE_NETWORK,
    STATE,
    Node,
    advertised_cpus,
    advertised_memory,
)
from hack.paths import BIN, run

PAUSE_IMAGE = "localhost/pause:1"


def up(node: Node, pause_archive: Path) -> None:
    for folder in (node.folder / "cni", node.run):
        folder.mkdir(parents=True, exist_ok=True)
    pki.kubeconfig(node.name, node.folder / "kubelet.conf")
    (node.folder / "containerd.toml").write_text(containerd_config(node))
    (node.folder / "cni" / "10-bridge.conflist").write_text(
        json.dumps(network_config(node), indent=1)
    )
    (node.folder / "kubelet.json").write_text(json.dumps(kubelet_config(node), indent=1))
    cpu_files(node.folder / "cpu", advertised_cpus())
    (node.folder / "meminfo").write_text(
        memory_file(Path("/proc/meminfo").read_text(), advertised_memory())
    )
    processes.start(
        node.name,
        "nsenter", f"--net=/run/netns/{node.namespace}",
        "unshare", "--uts", "--mount", "--propagation", "private",
        "/bin/sh", Path(__file__).with_name("node.sh"),
        env={
            "NODE": node.name,
            "NODE_IP": node.ip,
            "FOLDER": str(node.folder),
            "SOCKET": str(node.socket),
            "PAUSE_ARCHIVE": str(pause_archive),
            "PROXY_CONFIG": str(STATE / "proxy.conf"),
            # Kubernetes 1.29 has nftables as an alpha only.
            "PROXY_MODE": "nftables" if KUBERNETES == "kubernetes" else "iptables",
            "PARTS": PARTS,
            "POLICY_CONFIG": str(STATE / "policy.conf"),
            "SERVICE_NETWORK": str(SERVICE_NETWORK),
            "IPV4": str(IP_FAMILY == "ipv4").lower(),
            "IPV6": str(IP_FAMILY == "ipv6").lower(),
            "POD_NETWORK": str(POD_NETWORK),
            "PATH": f"{BIN}:{debian.program('containerd').parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        },
    )  # fmt: skip


def load(node: Node, archive: Path) -> None:
    """Import a docker or OCI archive into the node, because the nodes cannot reach a registry."""
    ctr = debian.program("containerd", "ctr")
    run(ctr, "--address", node.socket, "--namespace", "k8s.io", "images", "import", archive)


def images(node: Node) -> str:
    ctr = debian.program("containerd", "ctr")
    return run(ctr, "--address", node.socket, "--namespace", "k8s.io", "images", "list", "-q")


def containerd_config(node: Node) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{node.folder}/containerd"
state = "{node.run}/state"
[grpc]
  address = "{node.socket}"
[ttrpc]
  address = "{node.run}/ttrpc.sock"
[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true  # root without CAP_SYS_RESOURCE cannot lower it
  enable_unprivileged_icmp = true  # as containerd 2 does by default
  enable_unprivileged_ports = true
[{cri}.cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{node.folder}/cni"
"""


def network_config(node: Node) -> dict:
    """CNI: one bridge per node, without masquerading: a pod is visible under its address, inside
    the machine only.
    """
    ipam = {
        "type": "host-local",
        "dataDir": f"{node.folder}/ipam",
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": {"ipv4": "0.0.0.0/0", "ipv6": "::/0"}[IP_FAMILY]}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
    }
    port_map = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {
        "cniVersion": "0.4.0",
        "name": "gpu-charts",
        "plugins": [{**bridge, "ipam": ipam}, port_map],
    }


def kubelet_config(node: Node) -> dict:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.ip,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(PKI / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(PKI / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(PKI / f"{node.name}.key"),
        "clusterDNS": [HOST_IP],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "resolvConf": "",
        "healthzBindAddress": "127.0.0.1",
        "maxPods": 250,
        # cgroup v1 machines, and no cgroup but ours is touched
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}/pods",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "oomScoreAdj": 0,
        "failSwapOn": False,
        # several kubelets share one disk: none may remove images or pods when the disk is full
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi"},
        "localStorageCapacityIsolation": False,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",  # of changed Secrets: Kueue waits for one
        "volumePluginDir": str(node.folder / "volume-plugins"),
    }


def memory_file(real: str, gib: int) -> str:
    """Content of /proc/meminfo for the kubelet: `gib` GiB, for the reason in cpu_files."""
    return re.sub(r"MemTotal: .*", f"MemTotal:       {gib << 20} kB", real)


def cpu_files(folder: Path, count: int) -> None:
    """Write /sys/devices/system/cpu for the kubelet: `count` single-core processors.

    Nodes share the machine's cores, and a pod that requests 8 CPUs must still fit on a node.
    """
    for cpu in range(count):
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True, exist_ok=True)
        (topology / "core_id").write_text(f"{cpu}\n")
        (topology / "physical_package_id").write_text("0\n")
        (topology / "thread_siblings_list").write_text(f"{cpu}\n")
    for name in ("online", "possible", "present"):
        (folder / name).write_text(f"0-{count - 1}\n")
