"""Bridge, network namespaces and routes. No route leads out of the machine: see `isolate`."""

from __future__ import annotations

import json
from pathlib import Path

from hack.local_cluster.settings import (
    BRIDGE,
    HOST_IP,
    IP_FAMILY,
    NETWORKS,
    NODE_NETWORK,
    POD_NETWORK,
    SERVICE_NETWORK,
    Node,
)
from hack.paths import ToolError, run

FORWARD = {"ipv4": "net.ipv4.ip_forward=1", "ipv6": "net.ipv6.conf.all.forwarding=1"}[IP_FAMILY]
# Without it an address of IPv6 cannot be used for a second, until the kernel knows that it has no
# duplicate.
AT_ONCE = ["nodad"] if IP_FAMILY == "ipv6" else []


def up(nodes: list[Node]) -> None:
    refuse_conflicts()
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{HOST_IP}/{NODE_NETWORK.prefixlen}", "dev", BRIDGE, *AT_ONCE)
    run("ip", "link", "set", BRIDGE, "up")
    isolate()
    for node in nodes:
        _add_node(node, peers=[n for n in nodes if n != node])


def isolate() -> None:
    """Addresses of the cluster that no node owns are unreachable; without this they would take the
    default route.
    """
    for network in (POD_NETWORK, SERVICE_NETWORK):
        run("ip", "route", "add", "unreachable", str(network))


def _add_node(node: Node, peers: list[Node]) -> None:
    """A node reaches the bridge and the pods of its peers, and has no default route."""
    run("ip", "netns", "add", node.namespace)
    run(
        "ip",
        "link",
        "add",
        node.veth,
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        node.namespace,
    )
    run("ip", "link", "set", node.veth, "master", BRIDGE, "up")
    inside = ("ip", "-n", node.namespace)
    run(*inside, "link", "set", "lo", "up")
    run(*inside, "address", "add", f"{node.ip}/{NODE_NETWORK.prefixlen}", "dev", "eth0", *AT_ONCE)
    run(*inside, "link", "set", "eth0", "up")
    run("ip", "netns", "exec", node.namespace, "sysctl", "-qw", FORWARD)
    for peer in peers:
        run(*inside, "route", "add", peer.pods, "via", peer.ip)
    run(
        "ip", "route", "add", node.pods, "via", node.ip
    )  # the API server calls webhooks and kubelets


def down() -> None:
    """Remove everything that `up` created, also after an incomplete `up`."""
    for link in (entry["ifname"] for entry in json.loads(run("ip", "-json", "link"))):
        if link == BRIDGE or link.startswith("gpuc-v"):
            run("ip", "link", "delete", link)
    for name in _ours():
        run("ip", "netns", "delete", name)
    folder = Path("/run/netns")
    if folder.is_mount() and not any(folder.iterdir()):
        run("umount", folder)  # `ip netns add` mounts it and never unmounts it
    ours = {
        network for networks in NETWORKS.values() for network in networks[1:3]
    }  # also of the other IP_FAMILY
    for route in _routes():
        if route.get("type") == "unreachable" and route["dst"] in ours:
            run("ip", "route", "delete", "unreachable", route["dst"])


def refuse_conflicts() -> None:
    taken = [
        r["dst"]
        for r in _routes()
        if r["dst"] in {str(n) for n in (NODE_NETWORK, POD_NETWORK, SERVICE_NETWORK)}
    ]
    if taken:
        raise ToolError(
            f"this machine already routes {', '.join(taken)}, which the local cluster needs. "
            "Stop what uses it, or set KUBECONFIG to a cluster of yours."
        )


def _ours() -> list[str]:
    folder = Path("/run/netns")
    return sorted(p.name for p in folder.glob("gpuc-n*")) if folder.exists() else []


def _routes() -> list[dict]:
    return [
        route
        for family in ("-4", "-6")
        for route in json.loads(run("ip", family, "-json", "route"))
    ]
